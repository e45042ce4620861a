"""The time of training on N, 2N and 4N images."""

import argparse
import math
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from amp_sweep import record
from benchmarks.shared.children import environment
from benchmarks.shared.ratio import interval

CLAIM = 0.03  # twice the images take twice the time, within this


@dataclass(frozen=True)
class ImagesRow:
    """A number of images against the smallest: 1 is what proportion predicts."""

    images: int
    seconds: float  # of training, without the first epoch; median over repeats
    ratio: float | None
    low: float | None
    high: float | None

    @property
    def verdict(self) -> str:
        """Whether the interval lies within the claim."""
        if self.ratio is None:
            return "-"
        if self.low is None or self.high is None:
            return "one repeat"
        if self.low >= 1 - CLAIM and self.high <= 1 + CLAIM:
            return f"within {CLAIM:.0%}"
        beyond = self.high < 1 - CLAIM or self.low > 1 + CLAIM
        return f"beyond {CLAIM:.0%}" if beyond else "undecided"


def training_s(folder: Path, images: int, options: argparse.Namespace) -> float:
    """Seconds of training of a cell, without its first epoch."""
    name = f"images{images}"
    subprocess.run(
        [
            *(sys.executable, "-m", "amp_sweep.train", f"outputs={folder}", f"name={name}"),
            *("data=synthetic", "data.image_size=64", f"data.train_images={images}"),
            *("data.test_images=64", f"epochs={options.epochs}", "force=true", "track=none"),
            *("measure.probes=false", f"device={options.device}", *options.settings),
        ],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    (run,) = map(record.read, record.find(folder / name))
    return math.fsum(epoch["train_time_s"] for epoch in run.epochs[1:])


def grow_images(folder: Path, options: argparse.Namespace) -> list[ImagesRow]:
    """N, 2N and 4N images in turn, as often as was asked for."""
    counts = [options.images * factor for factor in (1, 2, 4)]
    found: dict[int, list[float]] = {count: [] for count in counts}
    for repeat in range(options.repeats):
        for count in counts if repeat % 2 == 0 else reversed(counts):
            found[count].append(training_s(folder, count, options))
            sys.stderr.write(f"{count:,} images: {found[count][-1]:.2f} s\n")
    rows = []
    for count in counts:
        ratio: tuple[float | None, float | None, float | None] = (None, None, None)
        if count != counts[0]:
            pairs = zip(found[count], found[counts[0]], strict=True)
            ratio = interval([large / small / (count / counts[0]) for large, small in pairs])
        rows.append(ImagesRow(count, statistics.median(found[count]), *ratio))
    return rows
