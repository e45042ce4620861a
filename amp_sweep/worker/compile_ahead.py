"""Compile a cell's step before the clock runs, without a trace in what is trained."""

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import torch
from torch import nn

from amp_sweep import generators
from amp_sweep.measure import synchronize
from amp_sweep.precision import Observed, observe
from amp_sweep.worker.build import Cell


@dataclass(frozen=True)
class Compiled:
    """What compiling took, and what it left as it was."""

    seconds: float
    layers: int  # convolutions and linear layers whose own code an uncompiled step runs
    uncompiled: int  # those of them whose own code the compiled step runs all the same


def compile_ahead(cell: Cell, observed: Observed) -> Compiled | None:
    """Compile the step of `cell`; None where nothing is to be compiled.

    `observed` gets what the same step computes in before it is compiled: hooks in compiled code
    would change it. Forward and backward passes without an update; generators, buffers and
    gradients are as before afterwards. All ranks call it.
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
        (raw,) = cell.train.batches(rows)

        def step() -> None:
            loss = trainer.loss(*cell.train.to_input(raw)).mean()
            trainer.scaler.scale(loss).backward()
            trainer.optimizer.zero_grad(set_to_none=True)

        def forward() -> None:
            trainer.loss(*cell.train.to_input(raw))

        with torch.compiler.set_stance("force_eager"), observe(cell.loss, observed):
            layers = layers_that_run(cell.loss, forward)
        step()
        uncompiled = layers & layers_that_run(cell.loss, step)
    with torch.no_grad():
        for name, buffer in cell.network.named_buffers():
            if name in buffers:  # else one that its first forward pass makes
                buffer.copy_(buffers[name])
    synchronize(cell.devices)
    return Compiled(time.perf_counter() - started, len(layers), len(uncompiled))


def layers_that_run(module: nn.Module, call: Callable[[], object]) -> set[int]:
    """The ids of those convolutions and linear layers of `module` whose Python code runs in `call`.

    That of compiled ones does not. What torch.compile steps over, it steps over without a word.
    """
    kinds = (nn.modules.conv._ConvNd, nn.Linear)
    layers = {id(layer) for layer in module.modules() if isinstance(layer, kinds)}
    found: set[int] = set()

    def profile(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "forward" and code.co_argcount:
            found.add(id(frame.f_locals.get(code.co_varnames[0])))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before if callable(before) else None)
    return found & layers
