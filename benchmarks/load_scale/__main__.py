"""How long many runs take to load and to compare, and how much memory.

    python -m benchmarks.load_scale                       # 2,500, 5,000 and 10,000 runs
    python -m benchmarks.load_scale --runs 100 --repeats 1 --out DIR

Makes synthetic records (20 epochs each, every figure that the analysis knows) in a
temporary folder. Each measurement is a fresh process. Cold: no cache of ours; the files
themselves are in the operating system's, as they are when a sweep has just ended. Warm: the
call before left its cache. `--out` writes `load-scale.md` and `load-scale.csv` there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.load_scale.made_up import make_runs
from benchmarks.load_scale.page import FIELDS, cells, growth, provenance, table, write
from benchmarks.shared.children import REPOSITORY
from benchmarks.shared.page import command

SIZES = (2_500, 5_000, 10_000)
# How old a record must be before its cached form is believed, and some more.
SETTLE_S = 2.5


def _in_fresh_process(sweep: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.load_scale.once", str(sweep)],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _caches(sweep: Path) -> list[Path]:
    return [path for path in sweep.iterdir() if path.is_file()]


def rounds(sizes: Sequence[int], repeats: int) -> Iterator[dict[str, Any]]:
    """Every measurement of the smallest total time per size, without and with our cache."""
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="load-scale-") as folder:
            sweep = Path(folder) / "sweep"
            sweep.mkdir()
            written = make_runs(sweep, size)
            print(f"{size:,} runs, {written / size / 1000:.1f} kB each", flush=True)
            time.sleep(SETTLE_S)
            for kind in ("cold", "warm"):
                found = []
                for _ in range(repeats):
                    if kind == "cold":
                        for path in _caches(sweep):
                            path.unlink()
                    load = round(os.getloadavg()[0], 1)
                    found.append({**_in_fresh_process(sweep), "load": load})
                best = min(found, key=lambda one: float(one["both_s"]))
                if best["runs"] != size:
                    raise SystemExit(f"{best['runs']} of {size} runs were loaded")
                yield {**best, "cache": kind, "repeats": repeats, "record_bytes": written // size}


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load_scale", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--runs", type=int, nargs="+", default=list(SIZES), metavar="N")
    parser.add_argument("--repeats", type=int, default=5, metavar="K")
    parser.add_argument("--out", type=Path, metavar="DIR")
    options = parser.parse_args(argv)
    rows = []
    for row in rounds(options.runs, options.repeats):
        rows.append(row)
        print(
            ", ".join(
                f"{title}: {cell}" for (_, title), cell in zip(FIELDS, cells(row), strict=True)
            )
        )
    text = provenance(rows)
    print(f"\n{table(rows)}\n\n{growth(rows)}\n\n{text}")
    if options.out:
        write(options.out, rows, text, command("load_scale", argv))
    return 0


if __name__ == "__main__":
    sys.exit(main())
