"""Optimizers and learning-rate schedules."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LRScheduler,
    ReduceLROnPlateau,
)

from amp_sweep.config import OptimizerConfig, SchedulerConfig

# Fused kernels take the gradient scale as a tensor: the scaler then never waits for the device.
FUSED = ("cuda", "cpu")


def build_optimizer(
    parameters: Iterable[nn.Parameter],
    config: OptimizerConfig,
    device: torch.device,
    *,
    in_graph: bool = False,
) -> torch.optim.Optimizer:
    """The optimizer of `config` over `parameters`, fused where there is a fused kernel.

    `in_graph`: its steps are captured, so the learning rate is a tensor that the schedule fills.
    """
    fused = device.type in FUSED
    lr = torch.tensor(config.lr, device=device) if in_graph else config.lr
    if config.name == "adamw":
        return torch.optim.AdamW(
            parameters,
            lr=lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=fused,
            capturable=in_graph,
        )
    return torch.optim.SGD(
        parameters,
        lr=lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.nesterov,
        fused=fused,
    )


def restore(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """`load_state_dict`, but how the optimizer runs here stays: it may have been without a graph.

    PyTorch puts the checkpoint's learning rate in the place of ours, on the CPU: a captured step
    would read it once, and train on with that rate whatever the schedule fills in.
    """
    ways: list[dict[str, Any]] = [
        {name: group[name] for name in ("lr", "capturable", "fused") if name in group}
        for group in optimizer.param_groups
    ]
    optimizer.load_state_dict(state)
    for group, way in zip(optimizer.param_groups, ways, strict=True):
        rate = float(group["lr"])
        group.update(way)
        group["lr"] = way["lr"].fill_(rate) if isinstance(way["lr"], Tensor) else rate


def build_scheduler(
    optimizer: torch.optim.Optimizer, config: SchedulerConfig, epochs: int
) -> LRScheduler:
    """The schedule of `config`, stepped once an epoch."""
    if config.name == "plateau":
        return ReduceLROnPlateau(
            optimizer, factor=config.factor, patience=config.patience, min_lr=config.min_lr
        )
    if config.name == "cosine":
        return CosineAnnealingLR(optimizer, T_max=epochs, eta_min=config.min_lr)
    return LambdaLR(optimizer, lambda _epoch: 1.0)


def step_scheduler(scheduler: LRScheduler, loss: float) -> None:
    """Advance by one epoch; `loss` is the same on every rank, so every rank decides alike."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(loss)
    else:
        scheduler.step()


def current_lr(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate now in force."""
    return float(optimizer.param_groups[0]["lr"])
