"""Where training is, and the checkpoints that bring it back."""

import logging
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from amp_sweep import checkpoint, config, data, generators, optim, source
from amp_sweep.energy import Energy
from amp_sweep.worker.build import Cell

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """All that a checkpoint must bring back besides tensors and generators."""

    epoch: int = 0  # epochs done
    step: int = 0  # steps done in the epoch under way
    epochs: list[dict[str, Any]] = field(default_factory=list)  # a row per epoch done
    losses: list[float] = field(default_factory=list)  # of the epoch under way, over all ranks
    scales: list[float] = field(default_factory=list)  # likewise, after each step
    epoch_time_s: float = 0.0  # training time of the epoch under way
    best_accuracy: float | None = None
    scale: float = 1.0  # before the next step
    skipped_steps: int = 0
    nonfinite_run: int = 0  # non-finite losses in a row, up to now
    energy: Energy = field(default_factory=Energy)  # of this rank's devices


def save_state(cell: Cell, progress: Progress) -> None:
    """Save everything needed to go on; all ranks call it, rank 0 writes."""
    everyones = cell.ranks.gather(generators.states(cell.devices))
    energies = cell.ranks.gather(asdict(progress.energy))
    if cell.ranks.rank != 0:
        return
    trainer = cell.trainer
    state = {
        "fingerprint": config.fingerprint(cell.config),
        "world_size": cell.ranks.world_size,
        "device_type": cell.device.type,
        "data_digest": cell.prepared.digest,
        "code_digest": cell.code_digest,
        "weights": cell.weights(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": cell.scheduler.state_dict(),
        "scaler": trainer.scaler.state_dict(),
        "generators": everyones,
        "progress": asdict(progress),
        "energies": energies,
    }
    checkpoint.save(cell.paths.last_checkpoint, state, cell.paths.previous_checkpoint)
    log.info("saved training state: epoch %d, step %d", progress.epoch, progress.step)


def save_weights(cell: Cell, path_name: str, progress: Progress) -> None:
    """Save the unwrapped network's weights as rank 0; they load under any parallelism."""
    if cell.ranks.rank != 0:
        return
    path = {
        "final": cell.paths.final_weights,
        "best": cell.paths.best_weights,
        "epoch": cell.paths.epoch_weights(progress.epoch),
    }[path_name]
    state = {
        "fingerprint": config.fingerprint(cell.config),
        "weights": cell.weights(),
        "epoch": progress.epoch,
    }
    checkpoint.save(path, state)


def _settle_buckets(cell: Cell) -> None:
    """Let DDP rebuild its buckets, which it does after the first backward passes.

    The order of summation changes with it: without this a resumed run of three or more ranks
    sums in another order than the run that it continues.
    """
    order = data.epoch_order(cell.prepared.train_count, cell.config.seed, 0, False)
    indices = data.rank_batches(
        order, cell.job.plan.global_batch, cell.ranks.rank, cell.ranks.world_size
    )[:1]
    cell.trainer.loss.train()
    # Compiled is the step later, and by itself: hooks of a first forward pass would be in it.
    with torch.compiler.set_stance("force_eager"):
        for _ in range(2):
            for raw in cell.train.batches(indices):
                cell.trainer.loss(*cell.train.to_input(raw)).mean().backward()
                cell.trainer.optimizer.zero_grad(set_to_none=True)


def _not_ours(cell: Cell, state: dict[str, Any]) -> str | None:
    """Why training cannot go on from a checkpoint, on any rank; a collective."""
    found = None
    here = (cell.ranks.world_size, cell.device.type)
    # A checkpoint of an earlier version has no digests, and what is not known does not differ.
    code, images = state.get("code_digest"), state.get("data_digest")
    if (state["world_size"], state["device_type"]) != here:
        found = (
            f"the checkpoint is from {state['world_size']} rank(s) on "
            f"{state['device_type']}, this is {here[0]} on {here[1]}"
        )
    elif None not in (code, cell.code_digest) and code != cell.code_digest:
        own = " and ".join(source.own_callables(cell.config))
        found = f"the code of {own} has changed since the checkpoint (code_digest)"
    elif images is not None and images != cell.prepared.digest:
        found = "the images have changed since the checkpoint (data_digest)"
    # Each node has its own copy of code and data.
    return next((reason for reason in cell.ranks.gather(found) if reason), None)


def resume(cell: Cell) -> tuple[Progress, list[str]]:
    """Bring the cell to its newest usable checkpoint; a fresh `Progress` where there is none.

    The second value says what was wrong with checkpoints that were passed over.
    """
    candidates = [cell.paths.last_checkpoint, cell.paths.previous_checkpoint]
    state, problems = checkpoint.load_newest(candidates, config.fingerprint(cell.config))
    if state is None:
        return Progress(), problems
    reason = _not_ours(cell, state)
    if reason is not None:
        problems.append(f"started over: {reason}")
        log.warning("started over: %s", reason)
        if cell.ranks.rank == 0:  # every rank has read it: what is given up must not come back
            for path in candidates:
                path.unlink(missing_ok=True)
        return Progress(), problems
    if cell.ranks.world_size > 1:
        _settle_buckets(cell)
    cell.network.load_state_dict(state["weights"])
    optim.restore(cell.trainer.optimizer, state["optimizer"])
    cell.scheduler.load_state_dict(state["scheduler"])
    cell.trainer.scaler.load_state_dict(state["scaler"])
    generators.restore(cell.devices, state["generators"][cell.ranks.rank])
    progress = Progress(**state["progress"])
    # A checkpoint of an earlier version has none: then the figure is of what follows it.
    energies = state.get("energies") or [{}] * cell.ranks.world_size
    progress.energy = Energy(**energies[cell.ranks.rank])
    log.info(
        "resumed at epoch %d, step %d, lr %g",
        progress.epoch,
        progress.step,
        optim.current_lr(cell.trainer.optimizer),
    )
    return progress, problems
