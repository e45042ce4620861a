"""Times of steps, by events on the device or a monotonic clock, read once an epoch."""

import contextlib
import enum
import itertools
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

# Steps at the start of a run that no throughput figure counts when there is one epoch only.
WARMUP_STEPS = 10


@dataclass(frozen=True)
class CpuTimes:
    """What the processors of this host have done up to a moment, in seconds of one core."""

    at_s: float  # of a clock that never goes back
    host_busy_s: float  # all processes
    own_s: float  # this process and its children
    host_cores: int


def cpu_times() -> CpuTimes:
    """The times now."""
    host = psutil.cpu_times()
    waiting = host.idle + getattr(host, "iowait", 0.0)
    # A guest's time is part of its host's user time.
    guests = getattr(host, "guest", 0.0) + getattr(host, "guest_nice", 0.0)
    own = time.process_time()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            times = child.cpu_times()
            own += times.user + times.system
    return CpuTimes(time.monotonic(), sum(host) - waiting - guests, own, os.cpu_count() or 1)


def synchronize(devices: Sequence[torch.device]) -> None:
    """Wait until the devices have done all that was asked of them."""
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        elif device.type == "mps":
            torch.mps.synchronize()


@dataclass
class StepTimes:
    """Milliseconds per step of one epoch: in all, waiting for the batch, preparing the input.

    `input_ms` is NaN at steps where it was not timed.
    """

    step_ms: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    wait_ms: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    input_ms: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))

    @staticmethod
    def joined(parts: "Sequence[StepTimes]") -> "StepTimes":
        """The parts of one epoch as one."""
        return StepTimes(
            *(
                np.concatenate([getattr(part, name) for part in parts] or [np.empty(0)])
                for name in ("step_ms", "wait_ms", "input_ms")
            )
        )


class _Mark(enum.IntEnum):
    """What a moment is the end of."""

    BATCH = 0  # the wait for it
    INPUT = 1  # its making
    STEP = 2


class StepClock:
    """Marks up to three moments a step: the batch is there, the input is ready, the step is done.

    On CUDA the marks are events on the current stream, so that a wait is one of the device, not
    of the host that runs ahead of it; they are read in `epoch_times`, and nothing waits before.

    An event costs a step that waits for its host more than it costs the device. `resident`: the
    images lie on the device, where no batch is waited for and each input is the same work; there
    it is timed at every `INPUT_EVERY`-th step.
    """

    INPUT_EVERY = 8

    def __init__(
        self, device: torch.device, enabled: bool = True, *, resident: bool = False
    ) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._enabled = enabled
        self._sparse = self._cuda and resident
        self._stream: torch.cuda.Stream | None = None
        self._events: list[torch.cuda.Event] = []
        self._times: list[float] = []
        self._kinds: list[_Mark] = []  # of each mark but the first
        self._steps = 0  # since the start of the epoch or of its part
        self._since_input = 0  # over all epochs: a part may have fewer steps than INPUT_EVERY

    def start_epoch(self) -> None:
        """Begin an epoch, or go on in the middle of one."""
        self._kinds.clear()
        self._times.clear()
        self._steps = 0
        if self._enabled and self._cuda:
            self._stream = torch.cuda.current_stream(self._device)
        self._mark()

    def batch_there(self) -> None:
        """The batch has reached the device."""
        if not self._sparse:
            self._mark(_Mark.BATCH)

    def input_ready(self) -> None:
        """Decoded, resized and normalised."""
        self._since_input += 1
        if not self._sparse or self._since_input == self.INPUT_EVERY:
            self._since_input = 0
            self._mark(_Mark.INPUT)

    def step_done(self) -> None:
        """The update is done."""
        self._steps += 1
        self._mark(_Mark.STEP)

    def _mark(self, kind: _Mark | None = None) -> None:
        if not self._enabled:
            return
        if kind is not None:
            self._kinds.append(kind)
        if not self._cuda:
            self._times.append(time.perf_counter())
            return
        index = len(self._kinds)
        if index == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self._events[index].record(self._stream)

    def epoch_times(self) -> StepTimes:
        """The epoch's times; call it after the devices were synchronised."""
        if not self._enabled:
            return StepTimes()
        if self._cuda:
            used = self._events[: len(self._kinds) + 1]
            intervals = np.array([a.elapsed_time(b) for a, b in itertools.pairwise(used)])
        else:
            intervals = np.diff(np.array(self._times)) * 1e3
        kinds = np.array(self._kinds, dtype=np.int64)
        ends = kinds == _Mark.STEP
        step_of_mark = np.cumsum(ends) - ends
        step_ms = np.asarray(np.bincount(step_of_mark, intervals, self._steps), dtype=np.float64)
        wait_ms, input_ms = np.zeros(self._steps), np.full(self._steps, np.nan)
        for mark, times in ((_Mark.BATCH, wait_ms), (_Mark.INPUT, input_ms)):
            times[step_of_mark[kinds == mark]] = intervals[kinds == mark]
        return StepTimes(step_ms=step_ms, wait_ms=wait_ms, input_ms=input_ms)


STEP_FIGURES = ("step_ms_p50", "step_ms_p95", "step_ms_p99", "data_wait_frac", "input_work_frac")


def step_metrics(epochs: Sequence[StepTimes]) -> dict[str, float | None]:
    """Percentiles of the step and shares of waiting and of input work, without the warm-up.

    The warm-up is the first epoch, or the first steps where there is one epoch only.
    """
    counted = list(epochs[1:])
    if not counted and epochs:
        first = epochs[0]
        counted = [
            StepTimes(
                first.step_ms[WARMUP_STEPS:],
                first.wait_ms[WARMUP_STEPS:],
                first.input_ms[WARMUP_STEPS:],
            )
        ]
    steps = np.concatenate([item.step_ms for item in counted]) if counted else np.empty(0)
    if not len(steps):
        return dict.fromkeys(STEP_FIGURES)
    total = float(steps.sum())
    p50, p95, p99 = (float(value) for value in np.percentile(steps, (50, 95, 99)))
    return {
        "step_ms_p50": p50,
        "step_ms_p95": p95,
        "step_ms_p99": p99,
        "data_wait_frac": float(sum(item.wait_ms.sum() for item in counted)) / total,
        "input_work_frac": _share_of_timed(np.concatenate([e.input_ms for e in counted]), steps),
    }


def _share_of_timed(part_ms: NDArray[np.float64], steps_ms: NDArray[np.float64]) -> float | None:
    """The part's share in the time of those steps in which it was timed (is not NaN)."""
    timed = ~np.isnan(part_ms)
    return float(part_ms[timed].sum() / steps_ms[timed].sum()) if timed.any() else None


def throughput(
    images_per_epoch: int, epoch_times_s: Sequence[float], only_epoch: StepTimes, batch: int
) -> float | None:
    """Images per second without the first epoch; with one epoch, without its warm-up steps."""
    if len(epoch_times_s) > 1:
        seconds = math.fsum(epoch_times_s[1:])
        return images_per_epoch * (len(epoch_times_s) - 1) / seconds if seconds > 0 else None
    steady = only_epoch.step_ms[WARMUP_STEPS:]
    seconds = float(steady.sum()) / 1e3
    return batch * len(steady) / seconds if seconds > 0 else None
