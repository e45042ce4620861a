import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from amp_sweep import engine, optim, precision
from amp_sweep.config import OptimizerConfig, SchedulerConfig
from amp_sweep.fast.master_weights import MasterAdamW, build_optimizer, float32_state, halve

ADAMW = OptimizerConfig(name="adamw", lr=1e-3)
CPU = torch.device("cpu")


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)
    )


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(16, 3, 8, 8, generator=generator)
    return images, torch.randint(0, 10, (16,), generator=generator)


def trainer(network: nn.Module, *, masters: bool, scaler: bool = True) -> engine.Trainer:
    kept = halve(network, torch.bfloat16) if masters else None
    loss = precision.ClassifierLoss(network, "cpu", torch.bfloat16)
    parameters = list(loss.parameters())
    return engine.Trainer(
        loss,
        parameters,
        optim.build_optimizer(parameters, ADAMW, CPU)
        if kept is None
        else build_optimizer(parameters, kept, ADAMW),
        precision.make_scaler(scaler, "cpu", 1024.0, 2000),
        None,
    )


def train(of: engine.Trainer, first: int, last: int) -> list[float]:
    return [float(engine.train_step(of, *batch(seed))) for seed in range(first, last)]


def test_half_precision_weights_with_masters_train_as_stock_autocast_does() -> None:
    stock = trainer(small(), masters=False)
    ours = trainer(small(), masters=True)
    # bfloat16 has 8 bits: the two differ by the last bits of float32 and by what those decide.
    assert train(ours, 0, 100) == pytest.approx(train(stock, 0, 100), abs=5e-3)


def test_the_first_update_equals_adamw_in_float64() -> None:
    network = small()
    before = {name: p.detach().double().clone() for name, p in network.named_parameters()}
    of = trainer(network, masters=True, scaler=False)
    loss = of.loss(*batch(0)).mean()
    loss.backward()
    gradients = {name: p.grad.double() for name, p in network.named_parameters()}  # type: ignore[union-attr]
    of.optimizer.step()
    assert isinstance(of.optimizer, MasterAdamW)
    after = float32_state(network, of.optimizer.masters())
    for name, weight in before.items():
        gradient = gradients[name]
        # At the first step the corrected averages are the gradient and its square.
        expected = weight * (1 - ADAMW.lr * ADAMW.weight_decay)
        expected -= ADAMW.lr * gradient / (gradient.abs() + ADAMW.eps)
        assert torch.allclose(after[name].double(), expected, rtol=0, atol=1e-6)


def test_layers_hold_the_rounded_masters_and_norms_stay_in_float32() -> None:
    network = small()
    of = trainer(network, masters=True)
    train(of, 0, 3)
    assert isinstance(of.optimizer, MasterAdamW)
    masters = of.optimizer.masters()
    assert {p.dtype for p in network[1].parameters()} == {torch.float32}
    assert len(masters) == 4
    for parameter, master in masters.items():
        assert parameter.dtype == torch.bfloat16 and master.dtype == torch.float32
        assert torch.equal(parameter, master.to(torch.bfloat16))


def test_a_step_with_a_non_finite_gradient_is_skipped_and_the_scale_halved() -> None:
    network = small()
    of = trainer(network, masters=True)
    train(of, 0, 2)
    assert isinstance(of.optimizer, MasterAdamW)
    before = {k: v.clone() for k, v in float32_state(network, of.optimizer.masters()).items()}
    images, labels = batch(2)
    images[0, 0, 0, 0] = float("inf")
    network[1].eval()  # its running mean would keep the infinity
    engine.train_step(of, images, labels)
    after = float32_state(network, of.optimizer.masters())
    assert all(torch.equal(before[name], after[name]) for name in before if "running" not in name)
    assert of.scaler.get_scale() == 512.0


def test_a_saved_state_goes_on_to_the_same_bits() -> None:
    whole = trainer(small(), masters=True)
    train(whole, 0, 8)
    first = small()
    half_way = trainer(first, masters=True)
    train(half_way, 0, 4)
    assert isinstance(half_way.optimizer, MasterAdamW)
    saved = copy.deepcopy(
        (float32_state(first, half_way.optimizer.masters()), half_way.optimizer.state_dict())
    )
    second = small()
    resumed = trainer(second, masters=True)
    second.load_state_dict(saved[0])
    resumed.optimizer.load_state_dict(saved[1])
    resumed.scaler.load_state_dict(half_way.scaler.state_dict())
    train(resumed, 4, 8)
    assert isinstance(whole.optimizer, MasterAdamW) and isinstance(resumed.optimizer, MasterAdamW)
    masters = zip(
        whole.optimizer.masters().values(), resumed.optimizer.masters().values(), strict=True
    )
    assert all(torch.equal(one, other) for one, other in masters)


@pytest.mark.parametrize("name", ["plateau", "cosine"])
def test_a_schedule_fills_the_rate_that_a_captured_graph_reads(name: str) -> None:
    of = trainer(small(), masters=True)
    rate = of.optimizer.param_groups[0]["lr"]
    scheduler = optim.build_scheduler(of.optimizer, SchedulerConfig(name=name, patience=0), 4)
    train(of, 0, 1)
    for _ in range(3):
        optim.step_scheduler(scheduler, 1.0)
    assert of.optimizer.param_groups[0]["lr"] is rate
    assert float(rate) < ADAMW.lr


def test_gradients_reach_both_kinds_of_parameters() -> None:
    network = small()
    of = trainer(network, masters=True)
    F.relu(of.loss(*batch(0))).sum().backward()
    kinds = {parameter.grad.dtype for parameter in of.parameters if parameter.grad is not None}
    assert kinds == {torch.bfloat16, torch.float32}


class Shared(nn.Module):
    """Two linear layers with one weight, and one tied to an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.tied = (nn.Linear(4, 4, bias=False) for _ in range(3))
        self.b.weight = self.a.weight
        self.table = nn.Embedding(4, 4)
        self.tied.weight = self.table.weight


def test_shared_weights_are_stored_in_float32_under_every_name() -> None:
    network = Shared()
    optimizer = build_optimizer(network.parameters(), halve(network, torch.bfloat16), ADAMW)
    state = float32_state(network, optimizer.masters())
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert torch.equal(state["a.weight"], state["b.weight"])


def test_weights_that_others_use_too_stay_in_float32() -> None:
    network = Shared()
    halve(network, torch.bfloat16)
    assert network.a.weight.dtype == torch.bfloat16
    assert network.tied.weight.dtype == network.table.weight.dtype == torch.float32
    normed = nn.utils.spectral_norm(nn.Linear(4, 4))
    assert halve(normed, torch.bfloat16) == {}
