"""How long cells will take on a CPU, from one real step of each kind."""

import time
from collections.abc import Sequence

import torch

from amp_sweep import engine, models, optim, precision
from amp_sweep.config import ModelConfig, RunConfig
from amp_sweep.messages import Expectation


def step_s(settings: RunConfig, outputs: int, autocast: bool) -> float:
    """Seconds of one training step on this CPU, after one to warm up."""
    dtype = torch.bfloat16 if autocast else None
    network = models.build(settings.model.name, outputs, width=settings.model.width)
    loss = precision.ClassifierLoss(network, "cpu", dtype)
    trainer = engine.Trainer(
        loss,
        list(loss.parameters()),
        optim.build_optimizer(loss.parameters(), settings.optimizer, torch.device("cpu")),
        precision.make_scaler(False, "cpu", 1.0, 1),
        None,
    )
    size = settings.data.image_size
    images = torch.rand(settings.data.batch_size, 3, size, size)
    labels = torch.zeros(len(images), dtype=torch.int64)
    for _ in range(2):
        started = time.perf_counter()
        engine.train_step(trainer, images, labels)
        seconds = time.perf_counter() - started
    return seconds


def expectation(cells: Sequence[tuple[RunConfig, int, int]]) -> Expectation:
    """What to expect of cells, each given with its number of outputs and its steps in all."""
    known: dict[tuple[ModelConfig, int, int, bool], float] = {}

    def of(settings: RunConfig, outputs: int, autocast: bool) -> float:
        key = (settings.model, settings.data.image_size, settings.data.batch_size, autocast)
        if key not in known:
            known[key] = step_s(settings, outputs, autocast)
        return known[key]

    total = sum(
        steps * of(settings, outputs, settings.precision.autocast)
        for settings, outputs, steps in cells
    )
    slowdown = max(
        of(settings, outputs, True) / of(settings, outputs, False) for settings, outputs, _ in cells
    )
    return Expectation(total, slowdown)
