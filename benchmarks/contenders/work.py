"""What every contender does, and how it is timed."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from amp_sweep.models import AlexNet

CLASSES = 10
SOURCE_SIZE = 32
LR = 1e-4


class Absent(Exception):
    """The contender cannot run here; the message says why."""


@dataclass(frozen=True)
class Work:
    """What every contender does."""

    precision: str = "scaler"  # fp32, autocast, scaler, bf16
    batch: int = 64
    steps: int = 200
    warm_up: int = 20
    image_size: int = 227
    width: float = 1.0  # of AlexNet's layers
    device: str = "cuda"
    workers: int = 0
    images: str | None = None  # folder of class folders of JPEG files
    gpus: int = 1

    @property
    def dtype(self) -> torch.dtype | None:
        """What autocast computes in."""
        if self.precision == "fp32":
            return None
        half = self.precision in ("autocast", "scaler") and self.device == "cuda"
        return torch.float16 if half else torch.bfloat16

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The precision's context."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=self.dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """The precision's scaler; it does nothing where there is none."""
        return torch.amp.GradScaler(self.device, enabled=self.precision == "scaler")

    def network(self) -> nn.Module:
        """A new AlexNet on the device."""
        torch.manual_seed(0)
        return AlexNet(CLASSES, self.width).to(self.device)


def synchronize(work: Work) -> None:
    """Wait until the device has done what it was given."""
    if work.device == "cuda":
        torch.cuda.synchronize()


def timed(work: Work, step: Callable[[], object]) -> float:
    """Images per second of `step`, called as often as asked for."""
    for _ in range(work.warm_up):
        step()
    synchronize(work)
    started = time.perf_counter()
    for _ in range(work.steps):
        step()
    synchronize(work)
    return work.steps * work.batch / (time.perf_counter() - started)
