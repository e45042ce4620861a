"""What a training must hold to: else it ends, as it would mean nothing any more."""

import math
from typing import Any

import torch

from amp_sweep import optim
from amp_sweep.worker import honoured
from amp_sweep.worker.build import Cell, Invalid
from amp_sweep.worker.state import Progress


class Diverged(Exception):
    """The loss or the scale left the range in which training means anything."""


class RanksDiffer(Exception):
    """A rank's state is not rank 0's; `rank` says which."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


def check_first_step(cell: Cell, observed: set[str]) -> None:
    """Raise Invalid when layers computed in another format, or hold weights that nothing trains."""
    trained = {id(parameter) for parameter in cell.trainer.parameters}
    new = [name for name, weight in cell.network.named_parameters() if id(weight) not in trained]
    if new:
        raise Invalid(
            f"model.name={cell.config.model.name}: {', '.join(new)} was made in the forward pass, "
            "and no optimizer trains it; make every parameter in __init__"
        )
    dtype = cell.autocast_dtype
    requested = str(dtype).removeprefix("torch.") if dtype else "float32"
    if observed and (requested not in observed or (dtype is None and len(observed) > 1)):
        raise Invalid(
            f"layers computed in {', '.join(sorted(observed))}, requested was {requested}"
        )


def judge(cell: Cell, progress: Progress, first: int) -> None:
    """Count skipped steps; raise Diverged when the guard's limits are passed.

    Every rank sees the same figures and so comes to the same end.
    """
    limits = cell.config.guard
    for index in range(first, progress.step):
        step = progress.epoch * cell.steps_per_epoch + index + 1
        finite = math.isfinite(progress.losses[index])
        progress.nonfinite_run = 0 if finite else progress.nonfinite_run + 1
        if progress.nonfinite_run >= limits.nonfinite_steps:
            raise Diverged(
                f"{progress.nonfinite_run} non-finite losses in a row, up to step {step}"
            )
        if not cell.trainer.scaler.is_enabled():
            continue
        # The scaler halves its scale exactly when it skips a step.
        progress.skipped_steps += progress.scales[index] < progress.scale
        progress.scale = progress.scales[index]
        if progress.scale < limits.min_scale:
            raise Diverged(
                f"the gradient scale fell to {progress.scale:g} (guard.min_scale="
                f"{limits.min_scale:g}) at step {step}"
            )


def check_ranks_agree(cell: Cell) -> None:
    """Raise RanksDiffer naming the rank whose lr, scale or weights differ from rank 0's."""
    if cell.ranks.world_size == 1:
        return
    state = (
        optim.current_lr(cell.trainer.optimizer),
        cell.trainer.scaler.get_scale(),
        checksum(cell.trainer.parameters),
    )
    everyone = cell.ranks.gather(state)
    for rank, other in enumerate(everyone):
        if other != everyone[0]:
            raise RanksDiffer(
                rank,
                f"rank {rank} differs from rank 0: (lr, scale, weight checksum) "
                f"{other} against {everyone[0]}",
            )


def checksum(parameters: list[torch.nn.Parameter]) -> int:
    """A sum over the bits of all weights: equal weights give equal sums, whatever their order."""
    total = torch.zeros((), dtype=torch.int64, device=parameters[0].device)
    for parameter in parameters:
        size = parameter.element_size()
        bits = {1: torch.uint8, 2: torch.int16}.get(size, torch.int32)
        total += parameter.detach().flatten().view(bits).sum(dtype=torch.int64)
    return int(total)


def check_honoured(cell: Cell, progress: Progress, everyone: list[dict[str, Any]]) -> None:
    """Raise Invalid on all ranks when what ran is not what was asked for; a collective.

    It returns when rank 0 has stored the weights and the figures, and not where it could not.
    """
    found = honoured.differences(cell, progress, [rank["honoured"] for rank in everyone])
    differences = dict.fromkeys(text for texts in cell.ranks.gather(found) for text in texts)
    if differences:
        raise Invalid("; ".join(differences))
