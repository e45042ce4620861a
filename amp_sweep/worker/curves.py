"""The curves of a run, on rank 0: two tables and the tracker's own files."""

import csv
import shutil
from pathlib import Path
from typing import Any

from amp_sweep.paths import RunPaths
from amp_sweep.record import Record
from amp_sweep.track import open_tracker
from amp_sweep.worker.build import Cell
from amp_sweep.worker.state import Progress

EPOCH_FIELDS = ("epoch", "train_loss", "test_accuracy", "test_loss", "lr", "train_time_s",
                "images_per_s")  # fmt: skip
STEP_FIELDS = ("epoch", "step", "train_loss", "lr", "scale")


class Curves:
    """Go on after `progress`: what lies there of later epochs is dropped, as they come again."""

    def __init__(self, cell: Cell, progress: Progress) -> None:
        self._cell = cell
        if not progress.epoch:
            _forget_epochs(cell.paths)
        done = progress.epoch * cell.steps_per_epoch
        self._tracker = open_tracker(
            cell.config.track.name, cell.paths.tensorboard, done + 1 if done else None
        )
        _keep_epochs(cell.paths.epochs, EPOCH_FIELDS, progress.epoch)
        _keep_epochs(cell.paths.steps, STEP_FIELDS, progress.epoch)

    def begin(self, run: Record) -> None:
        """Enter the run among those that are compared; its `effective` is known."""
        self._tracker.begin(run)

    def epoch(self, progress: Progress, lr: float) -> None:
        """The epoch that just ended, and those of its steps that are logged."""
        row = progress.epochs[-1]
        steps = self._cell.steps_per_epoch
        every = self._cell.config.track.every_steps
        before = (row["epoch"] - 1) * steps
        rows = []
        for index, (loss, scale) in enumerate(
            zip(progress.losses, progress.scales, strict=True), start=1
        ):
            step = before + index
            if step == 1 or step % every == 0:
                rows.append([row["epoch"], step, loss, lr, scale])
                self._tracker.scalar("train/loss", loss, step)
                self._tracker.scalar("train/lr", lr, step)
                if self._cell.config.precision.scaler:
                    self._tracker.scalar("train/scale", scale, step)
        end = before + steps
        self._tracker.scalar("epoch/train_loss", row["train_loss"], end)
        self._tracker.scalar("epoch/lr", row["lr"], end)
        self._tracker.scalar("test/accuracy", row["test_accuracy"], end)
        self._tracker.scalar("test/loss", row["test_loss"], end)
        _append(self._cell.paths.steps, rows)
        _append(self._cell.paths.epochs, [[row[name] for name in EPOCH_FIELDS]])

    def finish(self, run: Record, progress: Progress) -> None:
        """Add the final figures; its `metrics` are known."""
        self._tracker.finish(run, progress.epoch * self._cell.steps_per_epoch)

    def close(self) -> None:
        """Write what is left."""
        self._tracker.close()


def _forget_epochs(paths: RunPaths) -> None:
    """Remove what an earlier attempt left of epochs that are all trained again."""
    shutil.rmtree(paths.tensorboard, ignore_errors=True)
    for file in (paths.best_weights, *paths.all_epoch_weights()):
        file.unlink(missing_ok=True)


def _keep_epochs(path: Path, fields: tuple[str, ...], epochs: int) -> None:
    """Start the table at `path`, keeping an earlier segment's rows of the first `epochs`."""
    kept: list[list[str]] = []
    if epochs and path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))[1:]
        kept = [row for row in rows if row and row[0].isdigit() and int(row[0]) <= epochs]
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([list(fields), *kept])


def _append(path: Path, rows: list[list[Any]]) -> None:
    with path.open("a", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
