"""What is trained for the page, and how much of it."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_sweep import record
from amp_sweep.record import Record
from benchmarks.shared.children import REPOSITORY, environment


@dataclass(frozen=True)
class Size:
    """How much is trained: enough for a steady figure, little enough for minutes."""

    article: list[str]  # the article's settings on the input of the tool
    written: list[str]  # and on its own
    overhead: list[str]
    few: list[str]  # images for what needs no steady rate
    large_batch: int
    precisions: str = "fp32,autocast,scaler"  # of the nine cells


def gpu_size(images: Path) -> Size:
    """Some seconds of training a cell on a data-centre GPU."""
    root = f"data.root={images}"
    return Size(
        article=[
            *("experiment=article", "data=imagefolder_article", root, "epochs=2"),
            *("data.train_images=18432", "data.test_images=1024"),
        ],
        written=[
            *("experiment=article_as_written", "data=imagefolder_as_written", root, "epochs=2"),
            *("data.train_images=1920", "data.test_images=128"),
        ],
        overhead=["--pairs", "100", "--steps", "40"],
        few=["data.train_images=3072"],
        large_batch=1024,
    )


def cpu_size() -> Size:
    """The same paths in seconds on a CPU: the figures mean little."""
    small = [
        *("model.width=0.1", "data=synthetic", "data.image_size=64", "data.batch_size=16"),
        *("data.train_images=64", "data.test_images=16", "data.classes=4"),
        *("data.source_size=16", "epochs=2", "device=cpu"),
    ]
    return Size(
        article=small,
        written=[*small, "data.pipeline=pil"],
        overhead=[
            *("--pairs", "3", "--steps", "2", "--epoch", "20", "--size", "64", "--width", "0.1"),
            *("--batch", "4", "--precision", "fp32", "--device", "cpu"),
        ],
        few=["data.train_images=32"],
        large_batch=32,
        precisions="fp32,scaler",
    )


def train(runs: Path, name: str, *overrides: str) -> list[Record]:
    """A sweep through the command line; its records. What it prints goes to stderr."""
    command = [sys.executable, "-m", "amp_sweep.train", "-m", f"outputs={runs}", f"name={name}"]
    started = time.monotonic()
    subprocess.run(
        [*command, "track=none", *overrides],
        env=environment(),
        stdout=sys.stderr,
        stderr=sys.stderr,
        check=False,
    )
    print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    found = [record.read(path) for path in record.find(runs / name)]
    for checkpoints in runs.glob(f"{name}/*/checkpoints"):
        shutil.rmtree(checkpoints)
    return found


def overhead(arguments: Sequence[str]) -> dict[str, Any]:
    """The figures of `measuring_overhead`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measuring_overhead", "--json", *arguments],
        env=environment(),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {}
    values: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return values
