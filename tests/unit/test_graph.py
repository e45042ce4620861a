"""A step captured in a CUDA graph against the same step, launched kernel by kernel."""

import io
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from amp_sweep import engine, optim, precision
from amp_sweep.config import OptimizerConfig, SchedulerConfig
from amp_sweep.data import Raw, Split
from amp_sweep.fast import master_weights
from amp_sweep.graph import WARM_UP_STEPS, StepGraph
from amp_sweep.measure import StepClock

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

STEPS, BATCH = 12, 16
ADAMW = OptimizerConfig(name="adamw", lr=1e-2)


class Resident:
    """Random images on the device, in the place of a `Split`."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randn(STEPS * BATCH, 3, 8, 8, generator=generator).cuda()
        self.labels = torch.randint(0, 10, (STEPS * BATCH,), generator=generator).cuda()

    def batches(self, indices: Sequence[Tensor]) -> Iterator[Raw]:
        for row in indices:
            yield Raw(row.cuda(), None)

    def to_input(self, raw: Raw) -> tuple[Tensor, Tensor]:
        return self.images.index_select(0, raw.indices), self.labels.index_select(0, raw.indices)


def trained(
    *, graph: bool, masters: bool, init_scale: float = 2.0**16, resumed: bool = False
) -> dict[str, Any]:
    """Losses and scales of three epochs, with a lower rate in the last, and the final weights."""
    device = torch.device("cuda", 0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10))
    network = network.to(device)
    kept = master_weights.halve(network, torch.float16) if masters else None
    loss = precision.ClassifierLoss(network, "cuda", torch.float16)
    parameters = list(loss.parameters())
    optimizer = (
        optim.build_optimizer(parameters, ADAMW, device, in_graph=graph)
        if kept is None
        else master_weights.build_optimizer(parameters, kept, ADAMW)
    )
    if resumed:  # as from a checkpoint, whose tensors lie on the CPU
        buffer = io.BytesIO()
        torch.save(optimizer.state_dict(), buffer)
        buffer.seek(0)
        optim.restore(optimizer, torch.load(buffer, map_location="cpu"))
    trainer = engine.Trainer(
        loss,
        parameters,
        optimizer,
        precision.make_scaler(True, "cuda", init_scale, 5),
        None,
        StepGraph(BATCH, STEPS, device, WARM_UP_STEPS) if graph else None,
    )
    scheduler = optim.build_scheduler(optimizer, SchedulerConfig(name="plateau", patience=0), 3)
    indices = torch.arange(STEPS * BATCH).view(STEPS, BATCH)
    split, clock = cast(Split, Resident()), StepClock(device)
    losses, scales = [], []
    for _ in range(3):
        done = engine.train_epoch(trainer, split, indices, clock, [device])
        losses += done.losses.tolist()
        scales += done.scales.tolist()
        optim.step_scheduler(scheduler, 1.0)  # no progress: the rate falls from the second on
        torch.randn(1 << 20, device=device)  # takes the memory that was freed since
    weights = [parameter.detach().float().cpu() for parameter in parameters]
    return {"losses": losses, "scales": scales, "weights": weights}


@pytest.mark.parametrize("masters", [False, True])
def test_a_captured_step_trains_as_the_same_step_does_kernel_by_kernel(masters: bool) -> None:
    eager, captured = (trained(graph=graph, masters=masters) for graph in (False, True))
    assert captured["scales"] == eager["scales"]
    assert captured["losses"] == pytest.approx(eager["losses"], abs=1e-3)
    for one, other in zip(eager["weights"], captured["weights"], strict=True):
        assert torch.allclose(one, other, atol=1e-3)


def test_a_captured_step_skips_updates_and_halves_the_scale() -> None:
    captured = trained(graph=True, masters=False, init_scale=2.0**40)
    assert captured["scales"][0] == 2.0**39
    assert captured["scales"] == trained(graph=False, masters=False, init_scale=2.0**40)["scales"]


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("masters", [False, True])
def test_a_rate_that_the_schedule_lowers_takes_effect_in_the_graph(
    masters: bool, resumed: bool
) -> None:
    lowered = trained(graph=True, masters=masters, resumed=resumed)["losses"]
    # Without an effect the third epoch's steps would be as large as the second's.
    second, third = lowered[STEPS : 2 * STEPS], lowered[2 * STEPS :]
    eager = trained(graph=False, masters=masters)["losses"]
    assert third == pytest.approx(eager[2 * STEPS :], abs=1e-3)
    assert second != third
