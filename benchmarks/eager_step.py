"""The default cell against the bare step, in turns: what the sweep adds to PyTorch's own work.

    python -m benchmarks.eager_step --precision scaler

The bare step trains on one batch that is there: no data, no input, no measuring. The cell does all
of that, on the same network with the same optimizer, in the same process. Windows are long, since
they pay too for what the cell does once an epoch. Not in it: the sign of life, a small file that is
written four times a second, and NVML's counters at an epoch's ends.
"""

import contextlib
import sys
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from amp_sweep import engine
from amp_sweep.config import RunConfig
from amp_sweep.measure import StepClock
from benchmarks import in_turns
from benchmarks.in_turns import Ratio


def measure(settings: RunConfig, pairs: int, steps: int) -> Ratio:
    """Time of the cell's steps over that of bare ones."""
    with in_turns.cell_of(settings) as cell:
        rows = in_turns.rows(cell, steps)
        images, labels = next(cell.train.to_input(raw) for raw in cell.train.batches(rows))
        network, trainer, dtype = cell.network, cell.trainer, cell.autocast_dtype
        clock = StepClock(cell.device, resident=cell.train.placement == "device")

        def autocast() -> contextlib.AbstractContextManager[object]:
            return torch.autocast(cell.device.type, dtype=dtype) if dtype else _NOTHING

        def bare() -> None:
            optimizer, scaler = trainer.optimizer, trainer.scaler
            # PyTorch's default, which the cell changes for a rank of one device.
            with torch.autograd.set_multithreading_enabled(True):
                for _ in range(steps):
                    with autocast():
                        loss = F.cross_entropy(network(images), labels)
                    scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad(set_to_none=True)

        def whole() -> None:
            engine.train_epoch(trainer, cell.train, rows, clock, cell.devices)

        network.train()
        return in_turns.compare(whole, bare, cell.devices, pairs, steps)


_NOTHING = contextlib.nullcontext()


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = in_turns.parser_for("The default cell against the bare step.")
    parser.set_defaults(steps=200, pairs=80)
    options = parser.parse_args(arguments)
    return in_turns.answer(
        options,
        lambda settings: measure(settings, options.pairs, options.steps),
        lambda found: f"{options.precision}: the default cell over the bare step {found.words()}",
    )


if __name__ == "__main__":
    sys.exit(main())
