"""Compile a cell's step before the clock runs, without a trace in what is trained."""

import contextlib
import time

import torch

from amp_sweep import generators
from amp_sweep.data import Raw
from amp_sweep.measure import synchronize
from amp_sweep.precision import Observed, count_uncompiled, observe
from amp_sweep.worker.build import Cell


def compile_ahead(cell: Cell, observed: Observed) -> float | None:
    """Seconds that compiling took; None where nothing is compiled.

    `observed` gets what the same step computes in before it is compiled: hooks in compiled code
    would change it; then what was not compiled. Forward and backward passes without an update;
    generators, buffers and gradients are as before afterwards. All ranks call it.
    """
    if cell.speedups.compile == "off":
        return None
    started = time.perf_counter()
    trainer = cell.trainer
    buffers = {name: buffer.clone() for name, buffer in cell.network.named_buffers()}
    rows = torch.arange(cell.job.plan.rank_batch).unsqueeze(0)
    trainer.loss.train()
    with (
        generators.unchanged(cell.devices),
        trainer.graph.on_its_stream() if trainer.graph else contextlib.nullcontext(),
    ):
        for raw in cell.train.batches(rows):
            with torch.compiler.set_stance("force_eager"), observe(cell.loss, observed):
                trainer.loss(*cell.train.to_input(raw))

            def step(raw: Raw = raw) -> None:
                loss = trainer.loss(*cell.train.to_input(raw)).mean()
                trainer.scaler.scale(loss).backward()
                trainer.optimizer.zero_grad(set_to_none=True)

            step()
            count_uncompiled(cell.loss, observed, step)
    with torch.no_grad():
        for name, buffer in cell.network.named_buffers():
            if name in buffers:  # else one that its first forward pass makes
                buffer.copy_(buffers[name])
    synchronize(cell.devices)
    return time.perf_counter() - started
