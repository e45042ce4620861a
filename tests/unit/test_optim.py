"""Update rules and schedules against their formulas."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from amp_sweep import optim
from amp_sweep.config import OptimizerConfig, SchedulerConfig


def lrs(
    scheduler: SchedulerConfig, losses: list[float], lr: float = 0.1, epochs: int | None = None
) -> list[float]:
    """The lr of each epoch, and the one that would come after the last."""
    weight = nn.Parameter(torch.zeros(1))
    optimizer = optim.build_optimizer(
        [weight], OptimizerConfig(name="sgd", lr=lr), torch.device("cpu")
    )
    made = optim.build_scheduler(optimizer, scheduler, epochs or len(losses))
    found = [optim.current_lr(optimizer)]
    for loss in losses:
        weight.grad = torch.zeros(1)
        optimizer.step()
        optim.step_scheduler(made, loss)
        found.append(optim.current_lr(optimizer))
    return found


def test_constant_leaves_the_lr_as_it_is() -> None:
    assert lrs(SchedulerConfig(name="constant"), [1.0, 9.0, 0.1]) == [0.1] * 4


@pytest.mark.parametrize("min_lr", [0.0, 0.01])
def test_cosine_is_half_a_cosine_down_to_min_lr(min_lr: float) -> None:
    found = lrs(SchedulerConfig(name="cosine", min_lr=min_lr), [1.0] * 10)
    expected = [
        min_lr + (0.1 - min_lr) * (1 + math.cos(math.pi * epoch / 10)) / 2 for epoch in range(11)
    ]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert found[5] == pytest.approx((0.1 + min_lr) / 2)


def plateau_by_hand(
    losses: list[float], lr: float, patience: int, factor: float, min_lr: float
) -> list[float]:
    """PyTorch's documented rule: relative threshold 1e-4, lowered when more than `patience`
    epochs in a row are no better than the best."""
    found, best, bad = [lr], math.inf, 0
    for loss in losses:
        if loss < best * (1 - 1e-4):
            best, bad = loss, 0
        else:
            bad += 1
        if bad > patience:
            lower, bad = max(lr * factor, min_lr), 0
            lr = lower if lr - lower > 1e-8 else lr  # smaller changes are not made
        found.append(lr)
    return found


@pytest.mark.parametrize("patience", [0, 1, 3])
@pytest.mark.parametrize(("factor", "min_lr"), [(0.1, 0.0), (0.5, 0.02)])
def test_plateau_follows_its_rule_on_any_losses(
    patience: int, factor: float, min_lr: float
) -> None:
    config = SchedulerConfig(name="plateau", patience=patience, factor=factor, min_lr=min_lr)
    noise = np.random.default_rng(patience)
    for losses in (
        [1.0] * 12,
        list(np.linspace(2, 1, 12)),
        list(noise.uniform(0.5, 1.5, 30)),
        [1.0, 0.99995, 0.99991, 0.9998, 0.9997],  # too little to count as better
    ):
        expected = plateau_by_hand(losses, 0.1, patience, factor, min_lr)
        assert lrs(config, losses) == pytest.approx(expected, rel=1e-9)


def test_the_articles_plateau_lowers_the_lr_after_three_more_epochs() -> None:
    found = lrs(SchedulerConfig(name="plateau"), [1.0, 1.0, 1.0, 1.0, 1.0], lr=1e-4)
    assert found == pytest.approx([1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-5])


ADAMW = OptimizerConfig(name="adamw", lr=0.01, beta1=0.8, beta2=0.95, eps=1e-6, weight_decay=0.2)
SGD = OptimizerConfig(name="sgd", lr=0.1, momentum=0.7, weight_decay=0.3)


@pytest.mark.parametrize(
    ("config", "kind", "expected"),
    [
        (ADAMW, torch.optim.AdamW,
         {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2, "amsgrad": False}),
        (SGD, torch.optim.SGD,
         {"lr": 0.1, "momentum": 0.7, "weight_decay": 0.3, "nesterov": False, "dampening": 0}),
        (OptimizerConfig(name="sgd", lr=0.1, nesterov=True), torch.optim.SGD,
         {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ],
)  # fmt: skip
def test_every_setting_reaches_the_optimizer(
    config: OptimizerConfig, kind: type, expected: dict[str, Any]
) -> None:
    optimizer = optim.build_optimizer(nn.Linear(2, 2).parameters(), config, torch.device("cpu"))
    assert type(optimizer) is kind
    (group,) = optimizer.param_groups
    assert {name: group[name] for name in expected} == expected
    assert len(group["params"]) == 2


def test_kernels_are_fused_where_there_are_fused_ones() -> None:
    for config in (ADAMW, SGD):
        weights = [nn.Parameter(torch.zeros(1))]
        fused = optim.build_optimizer(weights, config, torch.device("cpu")).param_groups[0]["fused"]
        plain = optim.build_optimizer(weights, config, torch.device("mps")).param_groups[0]["fused"]
        assert (fused, plain) == (True, False)


@pytest.mark.parametrize("config", [ADAMW, SGD])
def test_a_rate_that_a_graph_reads_stays_the_same_tensor_over_a_restart(
    config: OptimizerConfig,
) -> None:
    def built(lr: float) -> torch.optim.Optimizer:
        weights = [nn.Parameter(torch.zeros(1))]
        cpu = torch.device("cpu")
        return optim.build_optimizer(weights, replace(config, lr=lr), cpu, in_graph=True)

    optimizer = built(0.5)
    rate = optimizer.param_groups[0]["lr"]
    optim.restore(optimizer, built(0.25).state_dict())
    assert optimizer.param_groups[0]["lr"] is rate and optim.current_lr(optimizer) == 0.25
    scheduler = optim.build_scheduler(optimizer, SchedulerConfig(name="plateau", patience=0), 3)
    for _ in range(2):
        optim.step_scheduler(scheduler, 1.0)
    assert optimizer.param_groups[0]["lr"] is rate and float(rate) == pytest.approx(0.025)


@pytest.mark.parametrize("config", [ADAMW, SGD])
@pytest.mark.parametrize("in_graph", [False, True])
def test_a_restart_with_a_graph_or_without_one_runs_as_it_was_built(
    config: OptimizerConfig, in_graph: bool
) -> None:
    def built(lr: float, in_graph: bool) -> torch.optim.Optimizer:
        weights = [nn.Parameter(torch.ones(1))]
        cpu = torch.device("cpu")
        return optim.build_optimizer(weights, replace(config, lr=lr), cpu, in_graph=in_graph)

    before, after = built(0.25, not in_graph), built(0.5, in_graph)
    (weight,) = before.param_groups[0]["params"]
    weight.grad = torch.ones(1)
    before.step()
    flags = {name: after.param_groups[0].get(name) for name in ("capturable", "fused")}
    optim.restore(after, before.state_dict())
    (group,) = after.param_groups
    assert {name: group.get(name) for name in flags} == flags
    assert isinstance(group["lr"], torch.Tensor) is in_graph and optim.current_lr(after) == 0.25
    assert group["weight_decay"] == config.weight_decay
    (own,) = after.param_groups[0]["params"]
    own.grad = torch.ones(1)
    after.step()
    assert float(own.detach()) < 1


def updated(config: OptimizerConfig, start: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    weight = nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = optim.build_optimizer([weight], config, torch.device("cpu"))
    for gradient in gradients:
        weight.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return weight.detach().numpy()


def some_numbers() -> tuple[np.ndarray, list[np.ndarray]]:
    noise = np.random.default_rng(0)
    return noise.normal(size=20), [noise.normal(size=20) for _ in range(5)]


def test_adamw_updates_by_its_formula() -> None:
    start, gradients = some_numbers()
    w, m, v = start.copy(), np.zeros(20), np.zeros(20)
    for t, g in enumerate(gradients, start=1):
        w -= 0.01 * 0.2 * w  # decoupled decay
        m = 0.8 * m + 0.2 * g
        v = 0.95 * v + 0.05 * g**2
        w -= 0.01 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.95**t)) + 1e-6)
    np.testing.assert_allclose(updated(ADAMW, start, gradients), w, rtol=1e-10)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_updates_by_its_formula(nesterov: bool) -> None:
    config = OptimizerConfig(name="sgd", lr=0.1, momentum=0.7, weight_decay=0.3, nesterov=nesterov)
    start, gradients = some_numbers()
    w, velocity = start.copy(), np.zeros(20)
    for g in gradients:
        g = g + 0.3 * w
        velocity = 0.7 * velocity + g
        w = w - 0.1 * (g + 0.7 * velocity if nesterov else velocity)
    np.testing.assert_allclose(updated(config, start, gradients), w, rtol=1e-10)
