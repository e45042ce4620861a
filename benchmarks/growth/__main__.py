"""What twice as much costs: images, cells, and the memory of the process that runs the sweep.

    python -m benchmarks.growth --out DIR               # all three; some minutes
    python -m benchmarks.growth --parts cells --seeds 9 # 9 cells against 81
    python -m benchmarks.growth --small                 # does it all run?

images  the same cell on N, 2N and 4N images, repeats interleaved: its training time without the
        first epoch, as a ratio of what proportion predicts
cells   the nine cells of the matrix, tiny, with one seed and with more: the time of the whole
        command, and from the end of one cell to the end of the next
memory  of the same sweeps, on a terminal: resident memory of the sweep process and of the server
        that forks its ranks, at the end of each cell; what a cell adds is the slope of a
        straight line

Times need a quiet machine: the load is told. `--out` gets growth.md and growth.json.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.growth.images import grow_images
from benchmarks.growth.page import cells_table, images_table, memory_table, provenance
from benchmarks.growth.sweeps import watch_sweep
from benchmarks.shared import page

PARTS = ("images", "cells", "memory")


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--images", type=int, default=1024, help="N")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=9, help="of the large sweep")
    parser.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))
    parser.add_argument("--settings", nargs="*", default=[], help="of the cell of the images")
    parser.add_argument("--small", action="store_true", help="on the CPU: does it all run?")
    parser.add_argument("--out", type=Path, metavar="DIR", help="growth.md and growth.json")
    options = parser.parse_args(argv)
    if options.small:
        options.images, options.epochs, options.repeats, options.seeds = 64, 2, 1, 2
        options.device = "cpu"
    load = os.getloadavg()[0]
    pieces: list[str] = []
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="growth-") as name:
        folder = Path(name)
        if "images" in options.parts:
            rows = grow_images(folder, options)
            pieces.append(f"## Images\n\n{images_table(rows)}")
            figures["images"] = [asdict(row) for row in rows]
        if {"cells", "memory"} & set(options.parts):
            sweeps = [watch_sweep(folder, seeds, options) for seeds in (1, options.seeds)]
            figures["sweeps"] = [asdict(sweep) for sweep in sweeps]
            if "cells" in options.parts:
                pieces.append(f"## Cells\n\n{cells_table(sweeps)}")
            if "memory" in options.parts:
                pieces.append(f"## Memory\n\n{memory_table(sweeps)}")
    pieces.append(provenance(options, load))
    text = "\n\n".join(pieces)
    sys.stdout.write(f"{text}\n")
    if options.out:
        made_by = page.command("growth", argv)
        page.write(options.out / "growth.md", "What twice as much costs", text, made_by)
        figures["provenance"] = pieces[-1]
        page.write_json(options.out / "growth.json", figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
