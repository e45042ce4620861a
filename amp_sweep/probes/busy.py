"""How long a step keeps its device busy, and with what: kernels on a GPU, operations on a CPU."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from amp_sweep.measure import synchronize

Batch = TypeVar("Batch")

COMPUTE = "compute"
MEMORY = "memory"
COMMUNICATION = "communication"

# Where two kinds of kernel run at once, the time is the first one's: what communication hides
# behind costs nothing.
PRIORITY = (COMPUTE, MEMORY, COMMUNICATION)

# Matrix products and convolutions by the names that cuBLAS, cuDNN, CUTLASS and Triton give them.
_COMPUTE_KERNEL = re.compile(
    r"gemm|gemv|cutlass|xmma|nvjet|conv(?!ert)|fprop|dgrad|wgrad|winograd|splitk|flash|fmha"
    r"|attention|_fft|triton_\w*_mm|dot_kernel",
    re.IGNORECASE,
)
_COMMUNICATION_KERNEL = re.compile(r"nccl|memcpy ptop|all_?reduce", re.IGNORECASE)
_COMPUTE_OPERATION = re.compile(
    r"conv|(^|_)mm|addmm|bmm|baddbmm|matmul|linear|scaled_dot_product|lstm|gru", re.IGNORECASE
)

STEPS = 4
CPU_STEPS = 2


@dataclass(frozen=True)
class Busy:
    """Seconds of one step, per device; each moment is counted once."""

    compute_s: float  # matrix products and convolutions
    memory_s: float  # everything else: element-wise work, reductions, copies, the optimizer
    communication_s: float  # not hidden behind the others
    # From the batch being there to the update being done, with the probe's own conditions. None
    # on CUDA, where watching kernels slows their launches.
    window_s: float | None = None


def kernel_kind(name: str) -> str:
    """What a GPU kernel mainly does, by its name."""
    if _COMMUNICATION_KERNEL.search(name):
        return COMMUNICATION
    return COMPUTE if _COMPUTE_KERNEL.search(name) else MEMORY


def operation_kind(name: str) -> str:
    """What a CPU operation (`aten::mm` or `mm`) mainly does, by its name."""
    return COMPUTE if _COMPUTE_OPERATION.search(name.removeprefix("aten::")) else MEMORY


def exposed(intervals: Iterable[tuple[float, float, str]]) -> dict[str, float]:
    """Time per kind of intervals (start, end, kind), each moment counted for one kind only."""
    edges: list[tuple[float, int, str]] = []
    for start, end, kind in intervals:
        if end > start:
            edges += [(start, 1, kind), (end, -1, kind)]
    edges.sort(key=lambda edge: edge[0])
    running = dict.fromkeys(PRIORITY, 0)
    found = dict.fromkeys(PRIORITY, 0.0)
    before = 0.0
    for moment, change, kind in edges:
        for candidate in PRIORITY:
            if running[candidate]:
                found[candidate] += moment - before
                break
        running[kind] += change
        before = moment
    return found


def measure(
    fetch: Callable[[], Batch], step: Callable[[Batch], object], devices: Sequence[torch.device]
) -> Busy:
    """What a step keeps the devices busy with: by the profiler on CUDA, by the time of each
    operation on a CPU. A mean over devices and steps. `fetch` makes a batch, outside the clock.
    """
    if devices[0].type == "cuda":
        return _on_cuda(fetch, step, devices)
    return _on_cpu(fetch, step)


def _on_cuda(
    fetch: Callable[[], Batch], step: Callable[[Batch], object], devices: Sequence[torch.device]
) -> Busy:
    batches = [fetch() for _ in range(STEPS)]
    step(batches[0])
    synchronize(devices)
    # Without the host's side: it would only slow the launches, and kernels are all we read. Some
    # releases of PyTorch warn of what follows a first cycle, unless told to keep all.
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
        for batch in batches:
            step(batch)
        synchronize(devices)
    by_device: dict[int, list[tuple[float, float, str]]] = {int(d.index): [] for d in devices}
    for event in profiler.profiler.kineto_results.events():
        if _is_kernel(event) and event.device_index() in by_device:
            start = event.start_ns() / 1e9
            end = start + event.duration_ns() / 1e9
            by_device[event.device_index()].append((start, end, kernel_kind(event.name())))
    found = [exposed(intervals) for intervals in by_device.values()]
    if not any(sum(one.values()) for one in found):
        raise RuntimeError("the profiler saw no kernel")
    mean = {kind: sum(one[kind] for one in found) / len(found) / STEPS for kind in PRIORITY}
    return Busy(mean[COMPUTE], mean[MEMORY], mean[COMMUNICATION])


def _is_kernel(event: Any) -> bool:
    """Whether a profiler's event is a kernel or a copy, and no span that a program has named."""
    on_device = event.device_type() == torch._C._autograd.DeviceType.CUDA
    return on_device and not event.is_user_annotation()


class _OperationTimes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up the time of operations by kind, in backward passes too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds = dict.fromkeys(PRIORITY, 0.0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        started = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        self.seconds[operation_kind(func.name())] += time.perf_counter() - started
        return result


def _on_cpu(fetch: Callable[[], Batch], step: Callable[[Batch], object]) -> Busy:
    batches = [fetch() for _ in range(CPU_STEPS)]
    started = time.perf_counter()
    with _OperationTimes() as times:
        for batch in batches:
            step(batch)
    window_s = (time.perf_counter() - started) / CPU_STEPS
    seconds = {kind: value / CPU_STEPS for kind, value in times.seconds.items()}
    return Busy(seconds[COMPUTE], seconds[MEMORY], seconds[COMMUNICATION], window_s)
