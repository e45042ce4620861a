"""The epochs of one cell on one rank: train, agree, evaluate, save, go on or stop."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from amp_sweep import data, energy, engine, memory, optim, probes, record
from amp_sweep.measure import StepClock, StepTimes
from amp_sweep.messages import RankJob
from amp_sweep.parallel import Ranks
from amp_sweep.paths import RunPaths
from amp_sweep.precision import observe
from amp_sweep.worker import honoured, measured
from amp_sweep.worker.build import Cell, Invalid, build
from amp_sweep.worker.compile_ahead import compile_ahead
from amp_sweep.worker.report import Segment, look_around, rank_report
from amp_sweep.worker.state import Progress, resume, save_state, save_weights
from amp_sweep.worker.write import Writer

log = logging.getLogger(__name__)


class Diverged(Exception):
    """The loss or the scale left the range in which training means anything."""


class RanksDiffer(Exception):
    """A rank's state is not rank 0's; `rank` says which."""

    def __init__(self, rank: int, message: str) -> None:
        super().__init__(message)
        self.rank = rank


@dataclass
class StopRequest:
    """Set by a signal: save and stop. Ranks agree on the step before which they do."""

    requested: bool = False
    target: int | None = None

    def go_on(self, ranks: Ranks, step: int) -> bool:
        """Whether to do `step`, counted from 0 over the whole run."""
        if not self.requested:
            return True
        if self.target is None:
            self.target = ranks.agree_on_stop(step)
        return self.target is None or step < self.target


def run_cell(
    job: RankJob,
    paths: RunPaths,
    ranks: Ranks,
    stop: StopRequest,
    reached: Callable[[str], None] = lambda _what: None,
) -> str:
    """Build and train; returns `completed` or `interrupted`. Raises what went wrong.

    `reached` is called with `trained` when the final weights and the training's figures are on disk
    and every rank found them to be what was asked for: whatever dies from then on has cost no more
    than figures of probes. Then with `probed`, when those are written too.
    """
    rss_mib = memory.rss_mib()
    cell = build(job, paths, ranks)
    progress, notes = resume(cell) if job.resume else (Progress(), [])
    # As the device holds it: a scale that float32 rounds down is no skipped step.
    progress.scale = float(torch.tensor(cell.trainer.scaler.get_scale()))
    writer = Writer(cell, progress, notes)
    try:
        writer.sign_of_life(progress.epoch, progress.step, "start")
        segment = Segment(startup_s=time.monotonic() - job.launched_at, rss_before_mib=rss_mib)
        look_around(cell, segment)
        segment.compiled = compile_ahead(cell, segment.observed)
        finished = _train_epochs(cell, progress, segment, writer, stop)
        if finished:
            save_weights(cell, "final", progress)
        everyone = ranks.gather(rank_report(cell, segment, progress))
        writer.finish(progress, segment.first_step_s, segment.step_times, everyone)
        if finished:
            _check_honoured(cell, progress, everyone)
            reached("trained")
            _probe(cell, segment, progress, writer)
            reached("probed")
    finally:
        writer.close()
        cell.train.close()
        cell.test.close()
    if cell.trainer.graph is not None:
        cell.trainer.graph.close()
    ranks.leave()
    return record.COMPLETED if finished else record.INTERRUPTED


def _check_honoured(cell: Cell, progress: Progress, everyone: list[dict[str, Any]]) -> None:
    """Raise Invalid on all ranks when what ran is not what was asked for; a collective.

    It returns when rank 0 has stored the weights and the figures, and not where it could not.
    """
    found = honoured.differences(cell, progress, [rank["honoured"] for rank in everyone])
    differences = dict.fromkeys(text for texts in cell.ranks.gather(found) for text in texts)
    if differences:
        raise Invalid("; ".join(differences))


def _probe(cell: Cell, segment: Segment, progress: Progress, writer: Writer) -> None:
    """Take the figures that training must not pay for. Nothing of the run depends on them."""
    if not cell.config.measure.probes:
        writer.probed(progress, None)
        return
    found = probes.run_probes(
        measured.subject(cell, progress, segment.nvml.driver),
        lambda what: writer.sign_of_life(progress.epoch, progress.step, what),
    )
    writer.probed(progress, cell.ranks.gather(found))


def _train_epochs(
    cell: Cell, progress: Progress, segment: Segment, writer: Writer, stop: StopRequest
) -> bool:
    """Train until the last epoch (True), or until a stop is asked for and saved (False)."""
    settings, ranks = cell.config, cell.ranks
    resident = cell.train.placement == "device"
    clock = StepClock(cell.device, settings.measure.step_times, resident=resident)
    last_save = time.monotonic()
    while progress.epoch < settings.epochs:
        order = data.epoch_order(
            cell.prepared.train_count, settings.seed, progress.epoch, settings.data.shuffle
        )
        indices = data.rank_batches(order, cell.job.plan.global_batch, ranks.rank, ranks.world_size)
        parts: list[StepTimes] = []
        while progress.step < cell.steps_per_epoch:
            until = _next_save(settings.checkpoint.every_steps, progress.step, len(indices))
            part = indices[progress.step : until]
            parts.append(_train_part(cell, part, progress, segment, writer, stop, clock))
            stopped = progress.step < until
            if stopped or until < cell.steps_per_epoch:
                writer.sign_of_life(progress.epoch, progress.step, "save")
                save_state(cell, progress)
            if stopped:
                return False
        segment.step_times.append(StepTimes.joined(parts))
        _end_epoch(cell, progress, writer)
        # Saving is a collective and the clocks of ranks differ: rank 0's decides.
        due = time.monotonic() - last_save >= settings.checkpoint.min_interval_s
        if progress.epoch < settings.epochs and ranks.gather(due)[0]:
            writer.sign_of_life(progress.epoch, progress.step, "save")
            save_state(cell, progress)
            last_save = time.monotonic()
    return True


def _next_save(every_steps: int | None, step: int, steps: int) -> int:
    """The step of this epoch after which the next checkpoint is due, or the epoch's end."""
    return steps if every_steps is None else min(steps, (step // every_steps + 1) * every_steps)


def _train_part(
    cell: Cell,
    indices: Tensor,
    progress: Progress,
    segment: Segment,
    writer: Writer,
    stop: StopRequest,
    clock: StepClock,
) -> StepTimes:
    """Train on `indices` and add what its steps left behind to `progress`."""
    first = progress.step
    before = progress.epoch * cell.steps_per_epoch + first
    very_first = segment.first_step_s is None

    not_seen = segment.compiled is None  # hooks would have the step compiled twice

    def go_on(step: int) -> bool:
        if very_first and step == 1:
            hooks.close()
            _check_first_step(cell, segment.observed.dtypes)
        writer.sign_of_life(progress.epoch, first + step)
        return stop.go_on(cell.ranks, before + step)

    with (
        energy.window(segment.nvml, progress.energy, steady=progress.epoch > 0) as window,
        observe(cell.loss, segment.observed, active=very_first and not_seen) as hooks,
    ):
        done = engine.train_epoch(
            cell.trainer,
            cell.train,
            indices,
            clock,
            cell.devices,
            go_on=go_on,
            time_first_step=very_first,
        )
        window.images = len(done.losses) * indices.shape[1]  # a stop may have left some out
    if very_first:
        _check_first_step(cell, segment.observed.dtypes)  # also where there was one step only
        segment.first_step_s = done.first_step_s
    losses = cell.ranks.mean(done.losses)
    progress.losses += losses.tolist()
    progress.scales += done.scales.tolist()
    progress.epoch_time_s += done.time_s
    progress.step += len(losses)
    _judge(cell, progress, first)
    return done.times


def _check_first_step(cell: Cell, observed: set[str]) -> None:
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


def _judge(cell: Cell, progress: Progress, first: int) -> None:
    """Count skipped steps; raise Diverged when the guard's limits are passed.

    Every rank sees the same figures and so comes to the same end.
    """
    guard = cell.config.guard
    for index in range(first, progress.step):
        step = progress.epoch * cell.steps_per_epoch + index + 1
        finite = math.isfinite(progress.losses[index])
        progress.nonfinite_run = 0 if finite else progress.nonfinite_run + 1
        if progress.nonfinite_run >= guard.nonfinite_steps:
            raise Diverged(
                f"{progress.nonfinite_run} non-finite losses in a row, up to step {step}"
            )
        if not cell.trainer.scaler.is_enabled():
            continue
        # The scaler halves its scale exactly when it skips a step.
        progress.skipped_steps += progress.scales[index] < progress.scale
        progress.scale = progress.scales[index]
        if progress.scale < guard.min_scale:
            raise Diverged(
                f"the gradient scale fell to {progress.scale:g} (guard.min_scale="
                f"{guard.min_scale:g}) at step {step}"
            )


def _end_epoch(cell: Cell, progress: Progress, writer: Writer) -> None:
    """Close the epoch whose steps are done: schedule, compare ranks, evaluate, write."""
    mean_loss = math.fsum(progress.losses) / len(progress.losses)
    watched = progress.losses[-1] if cell.config.scheduler.metric == "last_batch" else mean_loss
    lr = optim.current_lr(cell.trainer.optimizer)
    seconds = max(cell.ranks.gather(progress.epoch_time_s))
    optim.step_scheduler(cell.scheduler, watched)
    _check_ranks_agree(cell)

    cell.ranks.share_buffers(cell.network)
    batches = data.eval_batches(
        cell.prepared.test_count, cell.eval_batch, cell.ranks.rank, cell.ranks.world_size
    )

    def alive(batch: int) -> None:
        writer.sign_of_life(progress.epoch, progress.step, f"evaluate, batch {batch}")

    totals = engine.evaluate(cell.loss, cell.test, batches, cell.device, alive)
    correct, count, loss_sum = cell.ranks.sum(totals).tolist()
    if count != cell.prepared.test_count:
        raise Invalid(f"evaluated {count:.0f} images of {cell.prepared.test_count}")

    accuracy = correct / count
    progress.epoch += 1
    progress.epochs.append(
        {
            "epoch": progress.epoch,
            "train_loss": mean_loss,
            "test_accuracy": accuracy,
            "test_loss": loss_sum / count,
            "lr": lr,
            "train_time_s": seconds,
            "images_per_s": cell.steps_per_epoch * cell.job.plan.global_batch / seconds,
        }
    )
    writer.epoch(progress, lr)
    writer.sign_of_life(progress.epoch, 0, "save")
    log.info(
        "epoch %d/%d: loss %.4f, test accuracy %.4f, %s",
        progress.epoch,
        cell.config.epochs,
        mean_loss,
        accuracy,
        record.duration(seconds),
    )
    if progress.best_accuracy is None or accuracy > progress.best_accuracy:
        progress.best_accuracy = accuracy
        save_weights(cell, "best", progress)
    if cell.config.checkpoint.every_epoch:
        save_weights(cell, "epoch", progress)
    progress.step = 0
    progress.epoch_time_s = 0.0
    progress.losses, progress.scales = [], []


def _check_ranks_agree(cell: Cell) -> None:
    """Raise RanksDiffer naming the rank whose lr, scale or weights differ from rank 0's."""
    if cell.ranks.world_size == 1:
        return
    state = (
        optim.current_lr(cell.trainer.optimizer),
        cell.trainer.scaler.get_scale(),
        _checksum(cell.trainer.parameters),
    )
    everyone = cell.ranks.gather(state)
    for rank, other in enumerate(everyone):
        if other != everyone[0]:
            raise RanksDiffer(
                rank,
                f"rank {rank} differs from rank 0: (lr, scale, weight checksum) "
                f"{other} against {everyone[0]}",
            )


def _checksum(parameters: list[torch.nn.Parameter]) -> int:
    """A sum over the bits of all weights: equal weights give equal sums, whatever their order."""
    total = torch.zeros((), dtype=torch.int64, device=parameters[0].device)
    for parameter in parameters:
        size = parameter.element_size()
        bits = {1: torch.uint8, 2: torch.int16}.get(size, torch.int32)
        total += parameter.detach().flatten().view(bits).sum(dtype=torch.int64)
    return int(total)
