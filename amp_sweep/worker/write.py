"""Rank 0's hand while it trains: the record, its curves, a sign of life."""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

import torch

from amp_sweep import record
from amp_sweep.measure import StepTimes
from amp_sweep.probes import Findings
from amp_sweep.record import Record
from amp_sweep.worker import measured, probed
from amp_sweep.worker.build import Cell
from amp_sweep.worker.curves import Curves
from amp_sweep.worker.effective import effective
from amp_sweep.worker.state import Progress

PROGRESS_S = 0.25
# These signs are always given: what follows may take long, and the launcher asks what it is.
NEVER_LEFT_OUT = ("save", "probe")

# Why the figures of probes are null, where they are.
UNFINISHED = "taken after the last epoch"
UNPROBED = "the probes after the training did not come to their end"


class Writer:
    """Rank 0's hand; on every other rank it writes nothing."""

    def __init__(self, cell: Cell, progress: Progress, notes: list[str]) -> None:
        self._cell = cell
        self._active = cell.ranks.rank == 0
        self._last_sign = 0.0
        self._last_epoch: dict[str, Any] | None = None
        self._began = progress.epoch + progress.step / cell.steps_per_epoch  # in epochs
        if not self._active:
            return
        self._curves = Curves(cell, progress)
        with self._record() as current:
            if not (progress.epoch or progress.step):
                current.notes = []  # of an attempt of which nothing is left
            for note in (*cell.job.plan.notes, *notes):
                current.note(note)
            if cell.trainer.scaler.is_enabled() and cell.autocast_dtype == torch.bfloat16:
                current.note("no effect here: bfloat16 has float32's range and needs no scaler")
            current.effective = effective(cell)
            current.epochs = progress.epochs
            current.segments[-1] |= {"from_epoch": progress.epoch, "from_step": progress.step}
            self._curves.begin(current)

    @contextlib.contextmanager
    def _record(self) -> Iterator[Record]:
        """The record, to be changed inside the block and then written."""
        current = record.read(self._cell.paths.record)
        yield current
        record.write(self._cell.paths.record, current)

    def sign_of_life(self, epoch: int, step: int, doing: str = "train") -> None:
        """Say where this run is, a few times a second; the launcher's stall guard watches."""
        now = time.monotonic()
        recent = now - self._last_sign < PROGRESS_S and not doing.startswith(NEVER_LEFT_OUT)
        if not self._active or recent:
            return
        self._last_sign = now
        cell = self._cell
        values = {
            "epoch": epoch,
            "epochs": cell.config.epochs,
            "step": step,
            "steps": cell.steps_per_epoch,
            "began": self._began,
            "doing": doing,
            "last_epoch": self._last_epoch,
        }
        temporary = cell.paths.progress.with_suffix(".tmp")
        temporary.write_text(json.dumps(values), encoding="utf-8")
        temporary.replace(cell.paths.progress)

    def epoch(self, progress: Progress, lr: float) -> None:
        """Write the row of the epoch that just ended, and the steps that are logged."""
        if not self._active:
            return
        self._last_epoch = progress.epochs[-1]
        self._curves.epoch(progress, lr)
        with self._record() as current:
            current.epochs = progress.epochs

    def finish(
        self,
        progress: Progress,
        first_step_s: float | None,
        step_times: list[StepTimes],
        ranks: list[dict[str, Any]],
    ) -> None:
        """Write the metrics; `ranks` holds each rank's own part."""
        if not self._active:
            return
        cell = self._cell
        finished = progress.epoch == cell.config.epochs
        figures = measured.trained(cell, progress, first_step_s, step_times, ranks)
        # Until `probed` has them: this process may not live that long.
        figures.add(probed.no_probes(UNPROBED if finished else UNFINISHED))
        with self._record() as current:
            figures.add(measured.cost(cell, current.segments))
            current.effective = effective(cell, ranks)
            for moment in ("gpus_start", "gpus_end"):
                current.segments[-1][moment] = [gpu for r in ranks for gpu in r[moment]]
            current.metrics |= figures.metrics
            # That others disturbed an earlier segment stays true.
            _forget_reasons(current, {*current.metrics} - {"contended"})
            contended = figures.metrics["contended"]
            for note in (*figures.notes(), *measured.device_notes(contended, ranks)):
                current.note(note)

    def probed(self, progress: Progress, ranks: list[Findings] | None) -> None:
        """Add what the probes found on each rank (None: they are off), and end the curves."""
        if not self._active:
            return
        cell = self._cell
        with self._record() as current:
            _forget_reasons(current, set(probed.PROBED))
            if ranks is None:
                figures = probed.no_probes("measure.probes=false")
            else:
                figures = probed.figures_of(
                    ranks,
                    images_per_s=current.metrics["images_per_s"],
                    wait_frac=current.metrics["data_wait_frac"],
                    global_batch=cell.job.plan.global_batch,
                    replicas=cell.job.plan.replicas,
                    effective=current.effective,
                )
            current.metrics.update(figures.metrics)
            for note in figures.notes():
                current.note(note)
            self._curves.finish(current, progress)

    def close(self) -> None:
        """Write what is left of the curves."""
        if self._active:
            self._curves.close()


def _forget_reasons(current: Record, figures: set[str]) -> None:
    """Drop what was said of these figures, by an earlier segment too: it is told anew."""
    known = figures.union(probed.INGREDIENTS)
    current.notes = [n for n in current.notes if not known.issuperset(_names(n))]


def _names(note: str) -> list[str]:
    """The figures of a note that gives a reason: `one, two: why`."""
    return note.partition(": ")[0].split(", ")
