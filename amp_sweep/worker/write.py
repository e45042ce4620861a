"""What rank 0 leaves on disk while it trains: record, curves, tables, a sign of life."""

import contextlib
import csv
import json
import time
from pathlib import Path
from typing import Any

import torch

from amp_sweep import record
from amp_sweep.measure import StepTimes, step_metrics, throughput
from amp_sweep.track import NoTracker, open_tracker
from amp_sweep.worker.build import Cell
from amp_sweep.worker.state import Progress

PROGRESS_S = 0.25

EPOCH_FIELDS = ("epoch", "train_loss", "test_accuracy", "test_loss", "lr", "train_time_s",
                "images_per_s")  # fmt: skip
STEP_FIELDS = ("epoch", "step", "train_loss", "lr", "scale")

# Named in the record's schema, and measured by no code yet.
NOT_MEASURED = ("energy_j", "flops_per_image", "mfu")


class Writer:
    """Rank 0's hand; on every other rank it writes nothing."""

    def __init__(self, cell: Cell, progress: Progress, notes: list[str]) -> None:
        self._cell = cell
        self._active = cell.ranks.rank == 0
        self._last_sign = 0.0
        self._last_epoch: dict[str, Any] | None = None
        self._tracker: Any = NoTracker()
        if not self._active:
            return
        done = progress.epoch * cell.steps_per_epoch
        self._tracker = open_tracker(
            cell.config.track.name, cell.paths.tensorboard, done + 1 if done else None
        )
        _keep_epochs(cell.paths.epochs, EPOCH_FIELDS, progress.epoch)
        _keep_epochs(cell.paths.steps, STEP_FIELDS, progress.epoch)
        with self._record() as current:
            for note in (*cell.job.plan.notes, *notes):
                current.note(note)
            if cell.trainer.scaler.is_enabled() and cell.autocast_dtype == torch.bfloat16:
                current.note("no effect here: bfloat16 has float32's range and needs no scaler")
            current.effective = self._effective()
            current.epochs = progress.epochs
            current.segments[-1]["from_epoch"] = progress.epoch

    @contextlib.contextmanager
    def _record(self) -> Any:
        """The record, to be changed inside the block and then written."""
        current = record.read(self._cell.paths.record)
        yield current
        record.write(self._cell.paths.record, current)

    def sign_of_life(self, epoch: int, step: int, doing: str = "train") -> None:
        """Say where this run is, a few times a second; the launcher's stall guard watches."""
        now = time.monotonic()
        if not self._active or (now - self._last_sign < PROGRESS_S and doing != "save"):
            return
        self._last_sign = now
        cell = self._cell
        values = {
            "epoch": epoch,
            "epochs": cell.config.epochs,
            "step": step,
            "steps": cell.steps_per_epoch,
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
        row = self._last_epoch = progress.epochs[-1]
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
        with self._record() as current:
            current.epochs = progress.epochs

    def finish(self, progress: Progress, segment: dict[str, Any], ranks: list[Any]) -> None:
        """Write the metrics: `segment` is what this process measured, `ranks` each rank's part."""
        if not self._active:
            return
        with self._record() as current:
            current.effective = self._effective()
            current.effective["device_names"] = [n for r in ranks for n in r["device_names"]]
            current.effective["hosts"] = [r["hostname"] for r in ranks]
            current.effective["observed_dtypes"] = sorted(
                {name for r in ranks for name in r["observed_dtypes"]}
            )
            current.metrics.update(self._metrics(progress, segment, ranks))
            current.note(f"{', '.join(NOT_MEASURED)}: not measured by this version")
            for name, value in current.metrics.items():
                if value is None and name.startswith(("step_ms", "data_wait")):
                    current.note(f"{name}: no step left after the warm-up, or step times are off")
                if value is None and name == "images_per_s":
                    current.note("images_per_s: no step left after the warm-up")

    def _metrics(
        self, progress: Progress, segment: dict[str, Any], ranks: list[Any]
    ) -> dict[str, Any]:
        cell = self._cell
        last = progress.epochs[-1] if progress.epochs else {}
        times = [row["train_time_s"] for row in progress.epochs]
        step_times: list[StepTimes] = segment["step_times"]
        per_epoch = cell.steps_per_epoch * cell.job.plan.global_batch
        return {
            "test_accuracy": last.get("test_accuracy"),
            "best_test_accuracy": progress.best_accuracy,
            "test_loss": last.get("test_loss"),
            "train_loss": last.get("train_loss"),
            "train_time_s": sum(times) + progress.epoch_time_s,
            "startup_s": segment["startup_s"],
            "first_step_s": segment["first_step_s"],
            "images_per_s": throughput(
                per_epoch,
                times,
                step_times[0] if step_times else StepTimes(),
                cell.job.plan.global_batch,
            ),
            **step_metrics(step_times),
            "peak_allocated_mib": [v for r in ranks for v in r["peak_allocated_mib"]] or None,
            "peak_reserved_mib": [v for r in ranks for v in r["peak_reserved_mib"]] or None,
            "peak_rss_mib": [r["peak_rss_mib"] for r in ranks],
            "optimizer_steps": progress.epoch * cell.steps_per_epoch
            + progress.step
            - progress.skipped_steps,
            "scaler_final_scale": progress.scale if cell.config.precision.scaler else None,
            "scaler_skipped_steps": progress.skipped_steps
            if cell.config.precision.scaler
            else None,
            **dict.fromkeys(NOT_MEASURED),
        }

    def _effective(self) -> dict[str, Any]:
        cell, plan = self._cell, self._cell.job.plan
        cuda = cell.device.type == "cuda"
        dtype = cell.autocast_dtype
        return {
            "parallel": cell.config.parallel.name,
            "device_type": cell.device.type,
            "device_names": [],
            "world_size": plan.world_size,
            "replicas": plan.replicas,
            "backend": plan.backend,
            "autocast_dtype": str(dtype).removeprefix("torch.") if dtype else None,
            "observed_dtypes": [],
            "scaler_enabled": cell.trainer.scaler.is_enabled(),
            "tf32_matmul": torch.backends.cuda.matmul.allow_tf32 if cuda else None,
            "tf32_cudnn": torch.backends.cudnn.allow_tf32 if cuda else None,
            "cudnn_benchmark": torch.backends.cudnn.benchmark if cuda else None,
            "native_bf16": None,
            "memory_format": "channels_last" if cell.channels_last else "contiguous",
            "compile": "off",
            "global_batch": plan.global_batch,
            "per_device_batch": plan.device_batch,
            "eval_batch": cell.eval_batch,
            "steps": cell.config.epochs * cell.steps_per_epoch,
            "train_images": cell.prepared.train_count,
            "test_images": cell.prepared.test_count,
            "data_digest": cell.prepared.digest,
            "data_placement": cell.train.placement,
            "image_size": cell.config.data.image_size,
            "outputs": cell.outputs,
            "threads": cell.threads,
        }

    def close(self) -> None:
        """Write what is left of the curves."""
        self._tracker.close()


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
