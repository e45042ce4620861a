"""Where the memory went: a breakdown at the instant of one probe step's peak."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from amp_sweep.probes import attribution
from amp_sweep.probes.allocations import CudaRecorder, TensorRecorder, mark, recorder_for
from amp_sweep.probes.attribution import Breakdown


@dataclass(frozen=True)
class MemoryUse:
    """One device's breakdown, and the allocator's own peak of the same step (None on a CPU)."""

    breakdown: Breakdown
    allocated: int | None  # bytes, with what blocks were rounded up by


@contextlib.contextmanager
def _replicas_told(
    network: nn.Module, recorder: CudaRecorder | TensorRecorder, devices: Sequence[torch.device]
) -> Iterator[None]:
    """DataParallel's copies of the weights, and their gradients, marked as what they are."""
    stack = contextlib.ExitStack()

    def before(module: nn.Module, _inputs: object) -> None:
        # Only replicas have it: there, weights are no parameters but results of a broadcast.
        for weight in getattr(module, "_former_parameters", {}).values():
            mark(recorder, devices, attribution.PARAMETERS, [weight])
            if weight.requires_grad:
                weight.register_hook(
                    lambda grad: mark(recorder, devices, attribution.GRADIENTS, [grad])
                )

    with stack:
        if len(devices) > 1:
            for module in network.modules():
                stack.callback(module.register_forward_pre_hook(before).remove)
        yield


def measure(
    network: nn.Module,
    step: "Step",
    devices: Sequence[torch.device],
    optimizer_state: Any,
    data: Any,
    *,
    eager: bool = True,
    buckets: Sequence[Tensor] = (),
) -> list[MemoryUse]:
    """One forward and backward pass, recorded; a breakdown per device.

    network: its parameters and buffers lie on the first device.
    step: makes the batch, the loss and the gradients, which it leaves in the parameters.
    optimizer_state, data: nested values with the tensors that lie on the devices for good.
    buckets: memory that is kept for gradients between steps, as views into it.
    eager: operations reach the devices one by one. Else their own workspaces count as activations.
    """
    cuda = devices[0].type == "cuda"
    if cuda:
        for device in devices:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
    weights = [*network.parameters(), *network.buffers()]
    with recorder_for(devices) as recorder, _replicas_told(network, recorder, devices):
        if isinstance(recorder, TensorRecorder):
            recorder.there([weights, optimizer_state, data, list(buckets)])
        mark(recorder, devices, attribution.PARAMETERS, weights)
        mark(recorder, devices, attribution.OPTIMIZER, [optimizer_state])
        mark(recorder, devices, attribution.INPUT, [data])
        mark(recorder, devices, attribution.GRADIENTS, list(buckets))

        def moments() -> list[int]:
            return [recorder.moment(place) for place in range(len(devices))]

        with recorder.operations() if eager else contextlib.nullcontext():
            batch = step.batch()
            mark(recorder, devices, attribution.INPUT, batch)
            ready = moments()
            loss = step.forward(*batch)
            forward = moments()
            step.backward(loss)
            gradients = [weight.grad for weight in network.parameters()]
            mark(recorder, devices, attribution.GRADIENTS, gradients)
            backward = moments()
        allocated = [
            torch.cuda.max_memory_allocated(device) if cuda else None for device in devices
        ]
        recorder.finish()
    del batch, loss, gradients
    found = []
    for place, trace in enumerate(recorder.traces):
        trace.input_end, trace.forward_end = ready[place], forward[place]
        trace.backward_end = backward[place]
        found.append(MemoryUse(attribution.breakdown(trace), allocated[place]))
    return found


@dataclass(frozen=True)
class Step:
    """The parts of one step, without the update."""

    batch: Callable[[], tuple[Tensor, Tensor]]
    forward: Callable[[Tensor, Tensor], Tensor]
    backward: Callable[[Tensor], None]


def metrics(found: Sequence[MemoryUse]) -> dict[str, list[float]]:
    """The record's figures, in MiB per device; those of the kinds add up to the peak.

    The peak is the allocator's: what it rounded blocks up by is unattributed.
    """
    mib = 2**20
    figures: dict[str, list[float]] = {f"memory_{kind}_mib": [] for kind in attribution.KINDS}
    extra = ("probe_peak", "activations_saved", "input_resident", "rounding")
    figures |= {f"memory_{name}_mib": [] for name in extra}
    for use in found:
        seen = use.breakdown
        rounding = max(0, (use.allocated or seen.peak) - seen.peak)
        for kind in attribution.KINDS:
            more = rounding if kind == attribution.UNATTRIBUTED else 0
            figures[f"memory_{kind}_mib"].append((seen.kinds[kind] + more) / mib)
        figures["memory_probe_peak_mib"].append((seen.peak + rounding) / mib)
        figures["memory_activations_saved_mib"].append(seen.saved / mib)
        figures["memory_input_resident_mib"].append(seen.resident / mib)
        figures["memory_rounding_mib"].append(rounding / mib)
    return figures
