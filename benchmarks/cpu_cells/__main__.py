"""The cells of the bare matrix on a CPU, each against a loop written by hand for the same work.

    python -m benchmarks.cpu_cells                      # all nine cells, five repeats
    python -m benchmarks.cpu_cells --matrix --out DIR   # and the whole bare matrix, once
    python -m benchmarks.cpu_cells --cells none,fp32 --epochs 2 --train-images 256 --repeats 1

The loop is what a person writes without this tool: scikit-learn's digits in memory, resized and
normalised per batch, AlexNet at a quarter of its width, fused AdamW, autocast and a scaler where
the cell has them, DistributedDataParallel over gloo where the cell has that. Each contender is a
fresh process; repeats are interleaved, ours and the loop's in turn. Compared are times of
training epochs, without the first, by the ratio of their medians in each repeat. The machine must
be quiet: the load is told.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.cpu_cells.ours import whole_matrix
from benchmarks.cpu_cells.side_by_side import Row, compare
from benchmarks.cpu_cells.work import PARALLELS, PRECISIONS, Work
from benchmarks.shared import page
from benchmarks.shared.provenance import machine
from benchmarks.shared.ratio import spread

CELLS = tuple((p, q) for p in PARALLELS for q in PRECISIONS)


def table(rows: Sequence[Row]) -> str:
    """The cells as a Markdown table."""
    header = ["cell", "by hand, ms an epoch", "ours, ms an epoch", "ours / by hand", "95% interval"]
    cells = [
        [
            f"{row.parallel} x {row.precision}",
            f"{row.hand_ms:.0f}",
            f"{row.ours_ms:.0f}",
            f"{row.ratio:.3f}",
            spread(row.low, row.high),
        ]
        for row in rows
    ]
    return page.table(header, cells)


def provenance(repeats: int, epochs: int, load: float) -> str:
    """On what, with which versions, when and how often it was measured."""
    return f"{machine(load)}; {repeats} repeats in turn, each a fresh process of {epochs} epochs"


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_cells", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cells", nargs="+", metavar="PARALLEL,PRECISION", help="default: all")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--train-images", type=int, help="default: all 1,437")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--channels-last", action="store_true", help="both contenders")
    parser.add_argument("--matrix", action="store_true", help="the whole bare matrix too")
    parser.add_argument("--out", type=Path, metavar="DIR", help="cells.md and cells.csv")
    options = parser.parse_args(argv)
    load = os.getloadavg()[0]
    cells = [tuple(cell.split(",")) for cell in options.cells or map(",".join, CELLS)]
    rows: list[Row] = []
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="cpu-cells-") as name:
        folder = Path(name)
        for parallel, precision in cells:
            work = Work(
                parallel, precision, options.epochs, options.train_images, options.channels_last
            )
            rows.append(compare(work, options.repeats, folder))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
        if options.matrix:
            found = whole_matrix(folder, {(r.parallel, r.precision): r.evaluate_ms for r in rows})
            lines.append(
                f"The bare matrix took {found['total_s']:.1f} s, {found['train_s']:.1f} s of it "
                "training. Its second and later cells took "
                f"{found['beyond_mean_s']:.2f} s beyond training and evaluation, at most "
                f"{found['beyond_max_s']:.2f} s."
            )
    text = "\n\n".join([table(rows), *lines, provenance(options.repeats, options.epochs, load)])
    print(f"\n{text}")
    if options.out:
        title = "Cells on a CPU against a loop written by hand"
        page.write(options.out / "cells.md", title, text, page.command("cpu_cells", argv))
        page.write_csv(options.out / "cells.csv", [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
