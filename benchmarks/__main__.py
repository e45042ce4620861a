"""Side by side: `python -m benchmarks --images FOLDER --out DIR`; `--cpu` runs small anywhere.

Each contender runs in a fresh process, the repeats interleaved, so that a slow minute falls on
all. Ratios of one run can be trusted; the figures themselves belong to the device.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from amp_sweep.hardware import cpu_name
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.work import CLASSES, SOURCE_SIZE, Work
from benchmarks.shared import page
from benchmarks.shared.provenance import commit, cores, today

TIMEOUT_S = 300.0

# Made-up JPEG files for the contenders that read files, where no folder is given.
MADE_UP_PER_CLASS = 20


@dataclass(frozen=True)
class Entry:
    """A row of the table: a contender at its work."""

    contender: str
    work: Work

    @property
    def label(self) -> str:
        """What tells the row apart."""
        work = self.work
        return f"{self.contender} ({work.precision}, batch {self.batch})"

    @property
    def batch(self) -> str:
        """Images a step: under dp they are shared out."""
        images, gpus = self.work.batch, self.work.gpus
        if gpus == 1:
            return f"{images}"
        return f"{images} on {gpus} GPUs" if "_dp" in self.contender else f"{images} x {gpus} GPUs"


def entries(options: argparse.Namespace) -> list[Entry]:
    """The rows that were asked for."""
    base = Work(images=options.images, steps=options.steps, workers=options.workers)
    if options.cpu:
        base = replace(base, device="cpu", image_size=64, width=0.25, warm_up=2)
    slow = replace(base, steps=max(1, base.steps // 10), warm_up=2)
    if options.gpus > 1:
        both = replace(base, gpus=options.gpus)
        rows = [
            Entry(name, replace(base if name in ("ours", "ours_fast") else both, precision=p))
            for p in ("scaler", "fp32")
            for name in (
                "ours",
                "ours_fast",
                "ours_ddp",
                "ours_ddp_fast",
                "ours_dp",
                "ours_dp_fast",
            )
        ]
    elif options.cpu:
        rows = [
            Entry(name, replace(base, precision=p))
            for p in ("fp32", "autocast")
            for name in ("bare", "ours")
        ]
        rows.append(Entry("article", replace(slow, precision="fp32")))
    else:
        rows = [
            *(Entry(n, replace(base, precision=p)) for p in ("scaler", "bf16", "fp32") for n in
              ("bare", "ours", "tuned", "ours_fast")),
            *(Entry(n, replace(base, batch=1024, steps=max(20, base.steps // 5)))
              for n in ("tuned", "ours_fast")),
            Entry("article", slow),
            Entry("lightning_workers", slow if not base.workers else base),
            *(Entry(n, base) for n in ("lightning_resident", "lightning_equal",
                                       "accelerate_resident", "accelerate_equal")),
        ]  # fmt: skip
    return [
        row
        for row in rows
        if (not options.only or row.contender in options.only)
        and (not options.precision or row.work.precision in options.precision)
    ]


@contextmanager
def images_folder(given: str | None) -> Iterator[str]:
    """The folder of images, or one of made-up JPEG files for as long as it is needed."""
    if given is not None:
        yield given
        return
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(prefix="benchmark_images_") as folder:
        for label in range(CLASSES):
            place = Path(folder) / f"class{label}"
            place.mkdir()
            for number in range(MADE_UP_PER_CLASS):
                pixels = random.integers(0, 256, (SOURCE_SIZE, SOURCE_SIZE, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.jpg")
        yield folder


def run(entry: Entry) -> dict[str, Any]:
    """What a fresh process prints: `images_per_s`, or why there is none."""
    command = [sys.executable, "-m", "benchmarks.contenders", entry.contender]
    try:
        done = subprocess.run(
            [*command, json.dumps(asdict(entry.work))],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"absent": f"no end within {TIMEOUT_S:.0f} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"absent": f"failed: {reason[:300]}"}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def provenance(options: argparse.Namespace) -> list[str]:
    """Where the figures come from."""
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return [
        f"device: {' + '.join(names) if names and not options.cpu else cpu_name()}",
        f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}",
        f"cores: {cores()}; loader workers: {options.workers}",
        f"steps timed: {options.steps} (a tenth for the slow loops); repeats: {options.repeats}",
        f"commit {commit()}; {today()}",
    ]


def table(rows: Sequence[Entry], found: dict[Entry, list[dict[str, Any]]]) -> list[str]:
    """The results in Markdown: median images/s, and each repeat."""
    lines = ["| contender | precision | batch | images/s | repeats |", "|---|---|---|---|---|"]
    for row in rows:
        results = found[row]
        values = [r["images_per_s"] for r in results if "images_per_s" in r]
        told = f"{statistics.median(values):,.0f}" if values else results[0]["absent"]
        each = ", ".join(f"{value:,.0f}" for value in values)
        lines.append(f"| {row.contender} | {row.work.precision} | {row.batch} | {told} | {each} |")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="small, on the CPU: does it all run?")
    parser.add_argument("--gpus", type=int, default=1, help="more than 1: parallelisms")
    parser.add_argument("--images", help="folder of class folders of JPEG files")
    parser.add_argument("--workers", type=int, default=0, help="loader processes of Lightning")
    parser.add_argument("--steps", type=int, default=300, help="steps that are timed")
    parser.add_argument("--repeats", type=int, default=1, help="of each contender, interleaved")
    parser.add_argument("--only", nargs="+", choices=sorted(CONTENDERS), help="these alone")
    parser.add_argument("--precision", nargs="+", help="in these precisions alone")
    parser.add_argument("--out", type=Path, help="folder for table.md and results.json")
    options = parser.parse_args(arguments)
    with images_folder(options.images) as options.images:
        rows = entries(options)
        text = "nothing was asked for\n"
        found: dict[Entry, list[dict[str, Any]]] = {row: [] for row in rows}
        for repeat in range(options.repeats):
            for number, row in enumerate(rows, start=1):
                result = run(row)
                found[row].append(result)
                told = result.get("images_per_s")
                said = result.get("absent") if told is None else f"{told:,.0f} images/s"
                sys.stderr.write(
                    f"[{repeat * len(rows) + number}/{len(rows) * options.repeats}] "
                    f"{row.label}: {said}\n"
                )
                # After each one: a run that is cut short keeps what it has.
                text = _written(options, rows, found)
    sys.stdout.write(text)
    return 0


def _written(
    options: argparse.Namespace, rows: Sequence[Entry], found: dict[Entry, list[dict[str, Any]]]
) -> str:
    """The table so far, in the folder that was asked for."""
    there = [row for row in rows if found[row]]
    results = [{**asdict(row), "results": found[row]} for row in there]
    for result in results:
        result["work"]["images"] = None  # a path of this machine
    return page.so_far(table(there, found), provenance(options), options.out, results)


if __name__ == "__main__":
    sys.exit(main())
