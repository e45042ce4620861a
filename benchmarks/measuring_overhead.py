"""What measuring costs: training with all of it on against all of it off, in turns.

    python -m benchmarks.measuring_overhead --pairs 160 --steps 40 --size 227

The windows (see in_turns.py) pay for what grows with the steps: events, and their reading.
What an epoch costs once, the energy counter at both ends, is timed by itself and added for an
epoch of `--epoch` steps. (The probes run after training and cost it nothing.)
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from amp_sweep import energy, engine
from amp_sweep.config import RunConfig
from amp_sweep.measure import StepClock
from benchmarks import in_turns
from benchmarks.in_turns import Ratio

# Readings of what an epoch costs once.
ONCE = 21


@dataclass(frozen=True)
class Overhead(Ratio):
    """Time of an epoch with measuring over its time without."""

    fixed_ms: float  # part of it: what an epoch costs once
    epoch: int  # its steps
    device: str


def measure(settings: RunConfig, pairs: int, steps: int, epoch: int) -> Overhead:
    """Train pairs of windows of `steps` steps with their clock on and off, as if of an epoch of
    `epoch` steps.
    """
    with in_turns.cell_of(settings) as cell:
        rows = in_turns.rows(cell, steps)
        nvml, spent = energy.open_nvml(cell.devices), energy.Energy()
        resident = cell.train.placement == "device"
        clocks = {on: StepClock(cell.device, on, resident=resident) for on in (True, False)}

        def window(on: bool) -> None:
            engine.train_epoch(cell.trainer, cell.train, rows, clocks[on], cell.devices)

        def once_ms() -> float:
            started = time.perf_counter()
            with energy.window(nvml, spent):
                pass
            return 1e3 * (time.perf_counter() - started)

        fixed_ms = float(np.median([once_ms() for _ in range(ONCE)]))
        found = in_turns.compare(
            lambda: window(True), lambda: window(False), cell.devices, pairs, steps
        )
        name = cell.device_name(cell.device)
    once = fixed_ms / (epoch * found.step_ms)
    values = asdict(found)
    for end in ("ratio", "low", "high"):
        values[end] += once
    return Overhead(**values, fixed_ms=fixed_ms, epoch=epoch, device=name)


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = in_turns.parser_for("What measuring costs, in turns with training.")
    parser.add_argument("--epoch", type=int, default=781, help="steps of an epoch")
    options = parser.parse_args(arguments)
    return in_turns.answer(
        options,
        lambda settings: measure(settings, options.pairs, options.steps, options.epoch),
        lambda found: (
            f"{found.device}: all measuring on against all off "
            + found.words(f"; in it {found.fixed_ms:.2f} ms once an epoch of {found.epoch} steps")
        ),
    )


if __name__ == "__main__":
    sys.exit(main())
