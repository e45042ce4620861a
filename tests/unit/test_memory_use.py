"""The memory breakdown of real steps, against what is known to be there."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from amp_sweep import models
from amp_sweep.precision import ClassifierLoss
from amp_sweep.probes import allocations, attribution, memory_use

MIB = 2**20
BATCH, WIDTH, DEPTH = 64, 256, 3


class Plain(nn.Module):
    """Linear layers without a bias, and a square between them, whose memory can be counted."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(DEPTH))

    def forward(self, inputs: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs).square()
        return inputs


def measured(
    network: nn.Module,
    loss: nn.Module,
    device: torch.device,
    batch: tuple[Tensor, ...],
    data: list[Tensor],
    optimizer: torch.optim.Optimizer,
) -> memory_use.MemoryUse:
    for _ in range(2):  # states and workspaces are there from now on
        loss(*batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    step = memory_use.Step(
        batch=lambda: tuple(item.clone() for item in batch),  # type: ignore[arg-type, return-value]
        forward=lambda *items: loss(*items).mean(),
        backward=lambda value: value.backward(),
    )
    (found,) = memory_use.measure(network, step, [device], [*optimizer.state.values()], data)
    optimizer.zero_grad(set_to_none=True)
    return found


def counted(device: torch.device) -> memory_use.MemoryUse:
    torch.manual_seed(0)
    network = Plain().to(device)
    data = [torch.zeros(1000, WIDTH, device=device)]
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    batch = (torch.randn(BATCH, WIDTH, device=device),)
    return measured(network, network, device, batch, data, optimizer)


def test_every_byte_of_a_counted_network_is_attributed() -> None:
    seen = counted(torch.device("cpu")).breakdown
    weights = DEPTH * WIDTH * WIDTH * 4
    layer = BATCH * WIDTH * 4
    assert seen.kinds[attribution.PARAMETERS] == weights
    # Two moments per weight and a step number per parameter.
    assert seen.kinds[attribution.OPTIMIZER] == 2 * weights + DEPTH * 4
    assert seen.kinds[attribution.INPUT] == layer + 1000 * WIDTH * 4
    assert seen.resident == 1000 * WIDTH * 4
    assert seen.kinds[attribution.UNATTRIBUTED] == 0
    assert sum(seen.kinds.values()) == seen.peak


def test_saved_activations_of_a_counted_network_are_known() -> None:
    # A peak at the forward pass's end: the gradients of one small layer cannot exceed it.
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 1024), nn.ReLU(), nn.Linear(1024, 8))
    inputs = torch.randn(512, 8)
    loss = nn.Sequential(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    seen = measured(network, loss, torch.device("cpu"), (inputs,), [], optimizer).breakdown
    # The hidden layer after its ReLU is kept, for ReLU and for the second layer alike; the first
    # layer's own output is not. The second's output is, until its mean is taken.
    hidden, output = 512 * 1024 * 4, 512 * 8 * 4
    assert hidden <= seen.saved <= hidden + output
    weights = sum(p.numel() for p in network.parameters()) * 4
    assert seen.kinds[attribution.PARAMETERS] == weights


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_half_precision_copies_of_weights_are_counted_once(dtype: torch.dtype | None) -> None:
    class Shared(nn.Module):
        """Uses one weight twice: autocast casts it once. Then a passing peak."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(512, 512, bias=False)

        def forward(self, inputs: Tensor, _labels: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                result = self.layer(self.layer(inputs)).float()
            with torch.no_grad():
                result.repeat(1, 4096).mean()
            return result.mean().reshape(1)

    network = Shared()
    batch = (torch.randn(4, 512), torch.zeros(4))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    seen = measured(network, network, torch.device("cpu"), batch, [], optimizer).breakdown
    weight, small = 512 * 512 * 4, 20 * 4 * 512 * 4
    copies = weight // 2 if dtype else 0
    assert copies <= seen.saved <= copies + small


def test_the_figures_of_a_device_add_up_to_its_peak() -> None:
    figures = memory_use.metrics([counted(torch.device("cpu"))] * 2)
    kinds = [figures[f"memory_{kind}_mib"] for kind in attribution.KINDS]
    for device in (0, 1):
        total = sum(values[device] for values in kinds)
        assert total == pytest.approx(figures["memory_probe_peak_mib"][device])
    assert figures["memory_parameters_mib"] == [DEPTH * WIDTH * WIDTH * 4 / MIB] * 2


def test_what_blocks_are_rounded_up_by_is_unattributed_and_told() -> None:
    use = counted(torch.device("cpu"))
    rounded = memory_use.MemoryUse(use.breakdown, use.breakdown.peak + MIB)
    figures = memory_use.metrics([rounded])
    assert figures["memory_unattributed_mib"] == figures["memory_rounding_mib"] == [1.0]
    assert figures["memory_probe_peak_mib"] == [use.breakdown.peak / MIB + 1]


def test_the_bare_cells_memory_is_attributed() -> None:
    torch.manual_seed(0)
    network = models.build("alexnet", 10, width=0.25)
    loss = ClassifierLoss(network, "cpu", torch.bfloat16)
    batch = (torch.rand(16, 3, 64, 64), torch.zeros(16, dtype=torch.int64))
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    seen = measured(network, loss, torch.device("cpu"), batch, [], optimizer).breakdown
    weights = sum(p.numel() for p in network.parameters()) * 4
    assert seen.kinds[attribution.PARAMETERS] == weights
    assert seen.kinds[attribution.INPUT] == 16 * (3 * 64 * 64 * 4 + 8)
    assert seen.kinds[attribution.UNATTRIBUTED] <= 0.03 * seen.peak


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_allocators_blocks_are_attributed_on_a_gpu() -> None:
    device = torch.device("cuda", 0)
    use = counted(device)
    seen = use.breakdown
    assert use.allocated is not None
    assert use.allocated == pytest.approx(seen.peak, rel=0.03)
    weights = DEPTH * WIDTH * WIDTH * 4
    assert seen.kinds[attribution.PARAMETERS] == pytest.approx(weights, rel=0.01)
    assert seen.kinds[attribution.OPTIMIZER] == pytest.approx(2 * weights, rel=0.01)
    assert seen.kinds[attribution.UNATTRIBUTED] <= 0.03 * seen.peak
    assert seen.kinds[attribution.WORKSPACE] > 0  # cuBLAS's


class Allocator:
    """PyTorch's caching allocator as its snapshot and its counters tell of it, on two devices."""

    def __init__(self) -> None:
        self.traces: list[list[dict[str, Any]]] = [[], []]
        self.counts = [[0, 0], [0, 0]]
        self.blocks: list[dict[int, int]] = [{}, {}]
        self.recording = False
        self.workspaces: list[tuple[int, int]] = []

    def take(self, device: int, address: int, size: int) -> None:
        self.counts[device][0] += 1
        self.blocks[device][address] = -(-size // 512) * 512
        self._trace(device, "alloc", address, size)

    def give(self, device: int, address: int) -> None:
        self.counts[device][1] += 1
        size = self.blocks[device].pop(address)
        self._trace(device, "free_requested", address, size)
        self._trace(device, "free_completed", address, size)

    def _trace(self, device: int, action: str, address: int, size: int) -> None:
        if self.recording:
            entry = {"action": action, "addr": address, "size": size, "stream": 0}
            self.traces[device].append(entry)

    # What the recorder calls.

    def record(self, enabled: str | None, **_settings: Any) -> None:
        self.recording = enabled is not None

    def snapshot(self) -> dict[str, Any]:
        segments = [
            {
                "device": device,
                "blocks": [
                    {"address": 1, "size": 512, "state": "inactive"},
                    *(
                        {"address": address, "size": size, "state": "active_allocated"}
                        for address, size in blocks.items()
                    ),
                ],
            }
            for device, blocks in enumerate(self.blocks)
        ]
        for device in (0, 1):
            self._trace(device, "snapshot", 0, 0)
        return {"segments": segments, "device_traces": [list(trace) for trace in self.traces]}

    def stats(self, device: int) -> dict[str, Any]:
        allocated, freed = self.counts[device]
        return {"allocation": {"all": {"allocated": allocated, "freed": freed}}}

    def clear_workspaces(self) -> None:
        for device, address in self.workspaces:
            self.give(device, address)


def test_the_allocators_trace_is_read_per_device_and_from_its_own_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = Allocator()
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", there.record)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", there.snapshot)
    monkeypatch.setattr(torch._C, "_cuda_memoryStats", there.stats)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", there.clear_workspaces)
    there.recording = True  # someone recorded before
    there.take(1, 0x1000, 1000)
    there.take(0, 0x9000, 5000)
    there.take(1, 0x2000, 40_000)
    there.workspaces.append((1, 0x2000))
    with allocations.CudaRecorder([torch.device("cuda", 1)]) as recorder:
        assert recorder.moment(0) == 0
        there.take(1, 0x5000, 700)
        there.take(0, 0xA000, 10**6)  # the other device's are not ours
        there.take(1, 0x6000, 300)
        there.give(1, 0x6000)
        assert recorder.moment(0) == 3
        (trace,) = recorder.traces
        trace.marks.append(attribution.Mark(0, 0x1000, attribution.PARAMETERS))
        trace.marks.append(attribution.Mark(3, 0x5010, attribution.GRADIENTS))
        trace.backward_end = 3
        recorder.finish()
    assert not there.recording
    assert trace.there == [(0x1000, 1024), (0x2000, 40_448)]
    assert [(event.taken, event.size) for event in trace.events] == [
        (True, 1024),
        (True, 512),
        (False, 512),
        (False, 40_448),
    ]
    found = attribution.breakdown(trace)
    assert found.peak == 1024 + 40_448 + 1024 + 512
    assert found.kinds[attribution.WORKSPACE] == 40_448
    assert found.kinds[attribution.GRADIENTS] == found.kinds[attribution.PARAMETERS] == 1024
    assert found.kinds[attribution.UNATTRIBUTED] == 0
