"""Two kinds of window of one training, in turns in one process: the ratio of their times.

A step that waits for its host is as unsteady as the host, which drifts by a third between processes
and by a tenth within one. So windows are short and many, one of each kind right after the other and
in changing order, and what is reported is an interval of the ratio within pairs.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from amp_sweep import config, data
from amp_sweep.config import RunConfig
from amp_sweep.measure import synchronize
from amp_sweep.messages import RankJob
from amp_sweep.parallel import Ranks, make_plan
from amp_sweep.paths import RunPaths
from amp_sweep.worker.build import Cell, build
from benchmarks.shared.ratio import interval

PRECISIONS = ("fp32", "autocast", "scaler", "bf16")


@dataclass(frozen=True)
class Ratio:
    """Time of one kind of window over that of the other: 1.01 is one percent more."""

    ratio: float
    low: float  # ends of the 95% interval
    high: float
    pairs: int
    steps: int  # in each window
    step_ms: float  # of the other kind, median

    def words(self, more: str = "") -> str:
        """The ratio, and in brackets its interval, what it rests on, and `more`."""
        return (
            f"{self.ratio:.4f} (95% interval {self.low:.4f} to {self.high:.4f}, "
            f"n={self.pairs} pairs of {self.steps} steps of {self.step_ms:.2f} ms{more})"
        )


Found = TypeVar("Found", bound=Ratio)


def compare(
    one: Callable[[], object],
    other: Callable[[], object],
    devices: list[torch.device],
    pairs: int,
    steps: int,
) -> Ratio:
    """The time of `one` over that of `other`, each a window of `steps` steps, after two of each."""

    def seconds(window: Callable[[], object]) -> float:
        synchronize(devices)
        started = time.perf_counter()
        window()
        synchronize(devices)
        return time.perf_counter() - started

    if pairs < 2:
        raise ValueError(f"pairs={pairs}: an interval needs two")
    for window in (one, other) * 2:
        window()
    ones: list[float] = []
    others: list[float] = []
    for pair in range(pairs):
        turns = [(one, ones), (other, others)]
        for window, times in turns if pair % 2 else reversed(turns):
            times.append(seconds(window))
    step_ms = 1e3 * float(np.median(others)) / steps
    mean, low, high = interval([a / b for a, b in zip(ones, others, strict=True)])
    assert low is not None and high is not None
    return Ratio(mean, low, high, pairs, steps, step_ms)


def settings_for(size: int, width: float, batch: int, precision: str, device: str) -> RunConfig:
    """AlexNet on synthetic images that lie on the device."""
    half = precision != "fp32"
    values = config.to_dict(RunConfig(device=device))
    values["model"] |= {"name": "alexnet", "width": width}
    values["data"] |= {
        "name": "synthetic",
        "batch_size": batch,
        "image_size": size,
        "train_images": 16 * batch,
        "test_images": batch,
        "classes": 10,
        "source_size": 32,
    }
    values["parallel"] |= {"name": "none"}
    values["precision"] |= {"name": precision, "autocast": half, "scaler": precision == "scaler"}
    values["precision"]["dtype"] = "bfloat16" if precision == "bf16" else "auto"
    values["optimizer"] |= {"name": "adamw", "lr": 1e-4}
    values["scheduler"] |= {"name": "constant"}
    values["track"] |= {"name": "none"}
    return config.normalise(config.from_dict(values))


def parser_for(description: str) -> argparse.ArgumentParser:
    """What every such benchmark is asked for."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--pairs", type=int, default=160)
    parser.add_argument("--steps", type=int, default=40, help="in each window")
    parser.add_argument("--size", type=int, default=227, help="pixels")
    parser.add_argument("--width", type=float, default=1.0, help="of AlexNet")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", choices=PRECISIONS, default="scaler")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    return parser


def answer(
    options: argparse.Namespace,
    measure: Callable[[RunConfig], Found],
    sentence: Callable[[Found], str],
) -> int:
    """Measure with the settings that `options` ask for; print the figures as JSON, or as a
    `sentence`. The exit code.
    """
    os.environ.setdefault("AMP_SWEEP_CACHE", tempfile.mkdtemp())
    found = measure(
        settings_for(options.size, options.width, options.batch, options.precision, options.device)
    )
    print(json.dumps(asdict(found)) if options.json else sentence(found))
    return 0


@contextmanager
def cell_of(settings: RunConfig) -> Iterator[Cell]:
    """The cell, built in this process for as long as it is needed."""
    device = "cuda" if torch.cuda.is_available() and settings.device != "cpu" else "cpu"
    plan = make_plan(settings.parallel, settings.data.batch_size, "global", device, 1)
    prepared = data.prepare(settings.data)
    with tempfile.TemporaryDirectory() as folder:
        paths = RunPaths(Path(folder))
        config.save(settings, paths.config)
        job = RankJob(
            run_dir=folder,
            prepared=str(prepared.folder),
            plan=plan,
            launched_at=time.monotonic(),
            local_world_size=1,
            host="127.0.0.1",
            resume=False,
        )
        cell = build(job, paths, Ranks(0, 0, 1))
        try:
            yield cell
        finally:
            cell.train.close()
            cell.test.close()


def rows(cell: Cell, steps: int) -> Tensor:
    """Indices [steps, batch] into the cell's images, in order and again from the start."""
    order = torch.arange(cell.prepared.train_count)
    batch = cell.config.data.batch_size
    return order.repeat(-(-steps * batch // len(order)))[: steps * batch].view(steps, batch)
