"""What measuring costs: training with all of it on against all of it off, in turns.

    python -m benchmarks.measuring_overhead --pairs 100 --steps 40 --size 227

Both kinds of window train the same network in one process, one right after the other and in
changing order, so that a drift of clock or temperature meets both. Windows are short and many,
since a step that waits for the host is as unsteady as the host. The ratio of each pair gives a t
interval on the log ratio: that is what grows with the steps, the events of each and their reading.
What an epoch costs once, the energy counter at both ends, is timed by itself and added for an
epoch of `--epoch` steps. (The probes run after training and cost it nothing.)
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy import stats

from amp_sweep import config, data, energy, engine
from amp_sweep.config import RunConfig
from amp_sweep.measure import StepClock
from amp_sweep.messages import RankJob
from amp_sweep.parallel import Ranks, make_plan
from amp_sweep.paths import RunPaths
from amp_sweep.worker.build import Cell, build

# Readings of what an epoch costs once.
ONCE = 21


@dataclass(frozen=True)
class Overhead:
    """Time of an epoch with measuring over its time without: 1.01 is one percent more."""

    ratio: float
    low: float  # ends of the 95% interval
    high: float
    fixed_ms: float  # part of it: what an epoch costs once
    epoch: int  # its steps
    pairs: int
    steps: int  # in each window
    step_ms: float  # without measuring
    device: str


def log_ratio_interval(
    with_it: Sequence[float], without: Sequence[float], level: float = 0.95
) -> tuple[float, float, float]:
    """Ratio of paired times and the t interval on its logarithm. At least two pairs."""
    logs = np.log(np.asarray(with_it) / np.asarray(without))
    mean, error = float(logs.mean()), float(logs.std(ddof=1)) / math.sqrt(len(logs))
    reach = float(stats.t.ppf((1 + level) / 2, len(logs) - 1)) * error
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def _cell(settings: RunConfig, folder: Path) -> Cell:
    device = "cuda" if torch.cuda.is_available() and settings.device != "cpu" else "cpu"
    plan = make_plan(settings.parallel, settings.data.batch_size, "global", device, 1)
    prepared = data.prepare(settings.data)
    paths = RunPaths(folder)
    config.save(settings, paths.config)
    job = RankJob(
        run_dir=str(folder),
        prepared=str(prepared.folder),
        plan=plan,
        launched_at=time.time(),
        local_world_size=1,
        host="127.0.0.1",
        resume=False,
    )
    return build(job, paths, Ranks(0, 0, 1))


def measure(settings: RunConfig, pairs: int, steps: int, epoch: int) -> Overhead:
    """Train pairs of windows of `steps` steps with their clock on and off, as if of an epoch of
    `epoch` steps.
    """
    with tempfile.TemporaryDirectory() as folder:
        cell = _cell(settings, Path(folder))
        order = torch.arange(cell.prepared.train_count)
        batch = settings.data.batch_size
        rows = order.repeat(-(-steps * batch // len(order)))[: steps * batch].view(steps, batch)
        nvml, spent = energy.open_nvml(cell.devices), energy.Energy()
        resident = cell.train.placement == "device"
        clocks = {on: StepClock(cell.device, on, resident=resident) for on in (True, False)}

        def window_s(on: bool) -> float:
            started = time.perf_counter()
            engine.train_epoch(cell.trainer, cell.train, rows, clocks[on], cell.devices)
            return time.perf_counter() - started

        def once_ms() -> float:
            started = time.perf_counter()
            with energy.window(nvml, spent):
                pass
            return 1e3 * (time.perf_counter() - started)

        for on in (True, False, True, False):
            window_s(on)  # warm up
        fixed_ms = float(np.median([once_ms() for _ in range(ONCE)]))
        times: dict[bool, list[float]] = {True: [], False: []}
        for pair in range(pairs):
            for on in (True, False) if pair % 2 else (False, True):
                times[on].append(window_s(on))
        name = cell.device_name(cell.device)
        cell.train.close()
        cell.test.close()
    ratio, low, high = log_ratio_interval(times[True], times[False])
    step_ms = 1e3 * float(np.median(times[False])) / steps
    once = fixed_ms / (epoch * step_ms)
    return Overhead(
        ratio + once, low + once, high + once, fixed_ms, epoch, pairs, steps, step_ms, name
    )


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
    values["optimizer"] |= {"name": "adamw", "lr": 1e-4}
    values["scheduler"] |= {"name": "constant"}
    values["track"] |= {"name": "none"}
    return config.normalise(config.from_dict(values))


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = argparse.ArgumentParser(description="What measuring costs, in turns with training.")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=40, help="in each window")
    parser.add_argument("--epoch", type=int, default=781, help="steps of an epoch")
    parser.add_argument("--size", type=int, default=227, help="pixels")
    parser.add_argument("--width", type=float, default=1.0, help="of AlexNet")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--precision", choices=("fp32", "autocast", "scaler"), default="scaler")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(arguments)
    os.environ.setdefault("AMP_SWEEP_CACHE", tempfile.mkdtemp())
    settings = settings_for(
        options.size, options.width, options.batch, options.precision, options.device
    )
    found = measure(settings, options.pairs, options.steps, options.epoch)
    if options.json:
        print(json.dumps(asdict(found)))
    else:
        print(
            f"{found.device}: all measuring on against all off {found.ratio:.4f} "
            f"(95% interval {found.low:.4f} to {found.high:.4f}, n={found.pairs} pairs of "
            f"{found.steps} steps of {found.step_ms:.2f} ms; in it {found.fixed_ms:.2f} ms once "
            f"an epoch of {found.epoch} steps)"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
