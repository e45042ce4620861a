"""What ddp's exchange of gradients adds to a step: with it and without it."""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from amp_sweep.measure import synchronize

# Pairs of windows; the median of their differences is the answer.
PAIRS = 3


def added_s(
    wrapped: DistributedDataParallel,
    step: Callable[[], Tensor],
    devices: Sequence[torch.device],
    together: Callable[[], object],
    *,
    steps: int,
) -> float:
    """Seconds that the exchange adds to a forward and backward pass: what is not hidden behind it.

    step: makes a loss from the wrapped module; together: waits for all ranks. Windows of `steps`
    passes with and without the exchange take turns. A collective: all ranks call it.
    """

    def window(exchange: bool) -> float:
        together()
        synchronize(devices)
        started = time.perf_counter()
        for _ in range(steps):
            with contextlib.nullcontext() if exchange else wrapped.no_sync():
                step().backward()  # type: ignore[no-untyped-call]
            drop(wrapped)
        synchronize(devices)
        return (time.perf_counter() - started) / steps

    window(True)  # warm up
    differences = [window(True) - window(False) for _ in range(PAIRS)]
    return max(0.0, statistics.median(differences))


def drop(module: nn.Module) -> None:
    """Forget the gradients, as a training step does."""
    for parameter in module.parameters():
        parameter.grad = None
