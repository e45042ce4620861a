"""The figures that show what a record says about a run, from real sweeps, as one Markdown page.

    python -m benchmarks.figures --images FOLDER --out RESULTS           # one GPU
    python -m benchmarks.figures --images FOLDER --out RESULTS --two     # two GPUs
    python -m benchmarks.figures --cpu --out RESULTS                     # small, on a CPU

FOLDER holds CIFAR-10 as JPEG files (train/<class>/*.jpg, test/<class>/*.jpg). The page goes to
RESULTS/figures-*.md, all records to RESULTS/records-*.json; checkpoints are not kept.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from amp_sweep import record
from amp_sweep.record import Record
from benchmarks.figures.parts import one_device, two_devices
from benchmarks.figures.tables import notes, provenance
from benchmarks.figures.training import cpu_size, gpu_size


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; 1 when a cell did not complete."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.figures",
        description="Figures that explain themselves, as a page.",
    )
    parser.add_argument("--images", type=Path, help="CIFAR-10 as JPEG files, in folders")
    parser.add_argument("--out", type=Path, required=True, help="folder for the page")
    parser.add_argument("--two", action="store_true", help="what two GPUs show")
    parser.add_argument("--parts", type=int, help="only the first so many parts")
    parser.add_argument("--cpu", action="store_true", help="small, on a CPU")
    options = parser.parse_args(arguments)
    if not options.cpu and options.images is None:
        parser.error("--images is needed, or --cpu")
    size = cpu_size() if options.cpu else gpu_size(options.images.absolute())
    kind = "two" if options.two else "one"
    options.out.mkdir(parents=True, exist_ok=True)
    runs: dict[str, Record] = {}
    sections: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        parts = (two_devices if options.two else one_device)(size, Path(folder))
        for title, part in parts[: options.parts]:
            started = time.monotonic()
            found, text = part()
            seconds = time.monotonic() - started
            print(f"part {title!r}: {seconds:.0f} s", file=sys.stderr, flush=True)
            runs |= {f"{run.name} {run.fingerprint}": run for run in found}
            sections.append(f"## {title}\n\n{text}\n\n({seconds:.0f} s)")
            # After each part, so that what is cut short keeps what it has.
            page = "\n\n".join(
                [
                    "# Figures that explain themselves",
                    provenance([*runs.values()]),
                    *sections,
                    f"## Notes in the records\n\n{notes([*runs.values()])}\n",
                ]
            )
            (options.out / f"figures-{kind}.md").write_text(page, encoding="utf-8")
            (options.out / f"records-{kind}.json").write_text(
                json.dumps([vars(run) for run in runs.values()], indent=1), encoding="utf-8"
            )
    print(page)
    return 0 if all(run.status == record.COMPLETED for run in runs.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
