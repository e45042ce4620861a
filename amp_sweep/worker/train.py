"""The epochs of one cell on one rank: train, agree, evaluate, save, go on or stop."""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from amp_sweep import data, energy, engine, memory, optim, probes, record
from amp_sweep.measure import StepClock, StepTimes
from amp_sweep.messages import RankJob
from amp_sweep.parallel import Ranks
from amp_sweep.paths import RunPaths
from amp_sweep.precision import observe
from amp_sweep.worker import guard, probed
from amp_sweep.worker.build import Cell, Invalid, build
from amp_sweep.worker.compile_ahead import compile_ahead
from amp_sweep.worker.report import Segment, look_around, rank_report
from amp_sweep.worker.state import Progress, resume, save_state, save_weights
from amp_sweep.worker.write import Writer

log = logging.getLogger(__name__)


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
            guard.check_honoured(cell, progress, everyone)
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


def _probe(cell: Cell, segment: Segment, progress: Progress, writer: Writer) -> None:
    """Take the figures that training must not pay for. Nothing of the run depends on them."""
    if not cell.config.measure.probes:
        writer.probed(progress, None)
        return
    found = probes.run_probes(
        probed.subject(cell, progress, segment.nvml.driver),
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
            guard.check_first_step(cell, segment.observed.dtypes)
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
        guard.check_first_step(cell, segment.observed.dtypes)  # also where there was one step only
        segment.first_step_s = done.first_step_s
    losses = cell.ranks.mean(done.losses)
    progress.losses += losses.tolist()
    progress.scales += done.scales.tolist()
    progress.epoch_time_s += done.time_s
    progress.step += len(losses)
    guard.judge(cell, progress, first)
    return done.times


def _end_epoch(cell: Cell, progress: Progress, writer: Writer) -> None:
    """Close the epoch whose steps are done: schedule, compare ranks, evaluate, write."""
    mean_loss = math.fsum(progress.losses) / len(progress.losses)
    watched = progress.losses[-1] if cell.config.scheduler.metric == "last_batch" else mean_loss
    lr = optim.current_lr(cell.trainer.optimizer)
    seconds = max(cell.ranks.gather(progress.epoch_time_s))
    optim.step_scheduler(cell.scheduler, watched)
    guard.check_ranks_agree(cell)

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
