"""What rank 0 leaves on disk while it trains: record, curves, tables, a sign of life."""

import contextlib
import csv
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from amp_sweep import host_memory, record
from amp_sweep.energy import SLOWING, Energy
from amp_sweep.measure import StepTimes, step_metrics, throughput
from amp_sweep.paths import RunPaths
from amp_sweep.probes import Findings
from amp_sweep.record import Record
from amp_sweep.track import NoTracker, open_tracker
from amp_sweep.worker import measured
from amp_sweep.worker.build import Cell
from amp_sweep.worker.state import Progress

PROGRESS_S = 0.25
# These signs are always given: what follows may take long, and the launcher asks what it is.
NEVER_LEFT_OUT = ("save", "probe")

# Why the figures of probes are null, where they are.
UNFINISHED = "taken after the last epoch"
UNPROBED = "the probes after the training did not come to their end"

EPOCH_FIELDS = ("epoch", "train_loss", "test_accuracy", "test_loss", "lr", "train_time_s",
                "images_per_s")  # fmt: skip
STEP_FIELDS = ("epoch", "step", "train_loss", "lr", "scale")


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
        if not progress.epoch:
            _forget_epochs(cell.paths)
        done = progress.epoch * cell.steps_per_epoch
        self._tracker = open_tracker(
            cell.config.track.name, cell.paths.tensorboard, done + 1 if done else None
        )
        _keep_epochs(cell.paths.epochs, EPOCH_FIELDS, progress.epoch)
        _keep_epochs(cell.paths.steps, STEP_FIELDS, progress.epoch)
        with self._record() as current:
            if not (progress.epoch or progress.step):
                current.notes = []  # of an attempt of which nothing is left
            for note in (*cell.job.plan.notes, *notes):
                current.note(note)
            if cell.trainer.scaler.is_enabled() and cell.autocast_dtype == torch.bfloat16:
                current.note("no effect here: bfloat16 has float32's range and needs no scaler")
            current.effective = self._effective()
            current.epochs = progress.epochs
            current.segments[-1] |= {"from_epoch": progress.epoch, "from_step": progress.step}
            self._tracker.begin(current)

    @contextlib.contextmanager
    def _record(self) -> Any:
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
        energies = [Energy(**rank["energy"]) for rank in ranks]
        contended = [looked for rank in ranks for looked in rank["contended"]]
        if cell.device.type == "cpu":
            contended = [measured.cores_contended(ranks)]
        figures = measured.energy_figures(energies, contended)
        # Until `probed` has them: this process may not live that long.
        later = measured.no_probes(UNPROBED if finished else UNFINISHED)
        figures.metrics |= later.metrics
        figures.reasons |= later.reasons
        with self._record() as current:
            current.effective = self._effective()
            current.effective["device_names"] = [n for r in ranks for n in r["device_names"]]
            current.effective["hosts"] = [r["hostname"] for r in ranks]
            current.effective["observed_dtypes"] = sorted(
                {name for r in ranks for name in r["observed_dtypes"]}
            )
            current.effective["observed_dtypes_by_layer"] = [
                row for r in ranks for row in r["observed_dtypes_by_layer"]
            ]
            for moment in ("gpus_start", "gpus_end"):
                current.segments[-1][moment] = [gpu for r in ranks for gpu in r[moment]]
            current.metrics.update(self._metrics(progress, first_step_s, step_times, ranks))
            current.metrics.update(self._cost(current) | figures.metrics)
            # That others disturbed an earlier segment stays true.
            _forget_reasons(current, {*current.metrics} - {"contended"})
            for note in (*figures.notes(), *_device_notes(current.metrics, ranks)):
                current.note(note)
            for name, value in current.metrics.items():
                graph = cell.speedups.cuda_graph and cell.config.measure.step_times
                if value is None and name == "input_work_frac" and graph:
                    current.note("input_work_frac: the input is a part of the CUDA graph")
                elif value is None and name.startswith(("step_ms", "data_wait", "input_work")):
                    current.note(
                        f"{name}: not timed in a step after the warm-up, or step times are off"
                    )
                if value is None and name == "compile_s":
                    current.note("compile_s: nothing was compiled")
                if value is None and name == "images_per_s":
                    current.note("images_per_s: no step left after the warm-up")
                if value is None and name == "price_per_hour":
                    current.note("price_per_hour, cost: measure.price_per_hour is not given")

    def probed(self, progress: Progress, ranks: list[Findings] | None) -> None:
        """Add what the probes found on each rank (None: they are off), and end the curves."""
        if not self._active:
            return
        cell = self._cell
        with self._record() as current:
            _forget_reasons(current, set(measured.PROBED))
            if ranks is None:
                figures = measured.no_probes("measure.probes=false")
            else:
                figures = measured.probed(
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
            self._tracker.finish(current, progress.epoch * cell.steps_per_epoch)

    def _cost(self, current: Record) -> dict[str, float | None]:
        """The price of the devices from each start to the last checkpoint, without the probes."""
        price = self._cell.config.measure.price_per_hour
        if price is None:
            return {"price_per_hour": None, "cost": None}
        seconds = time.monotonic() - self._cell.job.launched_at
        earlier = [segment.get("wall_s") for segment in current.segments]
        seconds += sum(wall for wall in earlier if isinstance(wall, int | float))
        return {
            "price_per_hour": price,
            "cost": price * self._cell.job.plan.replicas * seconds / 3600,
        }

    def _metrics(
        self,
        progress: Progress,
        first_step_s: float | None,
        step_times: list[StepTimes],
        ranks: list[dict[str, Any]],
    ) -> dict[str, Any]:
        cell = self._cell
        last = progress.epochs[-1] if progress.epochs else {}
        times = [row["train_time_s"] for row in progress.epochs]
        per_epoch = cell.steps_per_epoch * cell.job.plan.global_batch
        allocated = [value for rank in ranks for value in rank["peak_allocated_mib"]]
        reserved = [value for rank in ranks for value in rank["peak_reserved_mib"]]
        steps = step_metrics(step_times)
        return {
            "test_accuracy": last.get("test_accuracy"),
            "best_test_accuracy": progress.best_accuracy,
            "test_loss": last.get("test_loss"),
            "train_loss": last.get("train_loss"),
            "train_time_s": sum(times) + progress.epoch_time_s,
            "startup_s": max(rank["startup_s"] for rank in ranks),
            "compile_s": max((c.seconds for r in ranks if (c := r["compiled"])), default=None),
            "first_step_s": first_step_s,
            "images_per_s": throughput(
                per_epoch,
                times,
                step_times[0] if step_times else StepTimes(),
                cell.job.plan.global_batch,
            ),
            **steps,
            "peak_allocated_mib": allocated or None,
            "peak_reserved_mib": reserved or None,
            "peak_cached_mib": [r - a for r, a in zip(reserved, allocated, strict=True)] or None,
            "peak_rss_mib": [rank["peak_rss_mib"] for rank in ranks],
            "peak_rss_above_mib": [rank["peak_rss_above_mib"] for rank in ranks],
            "optimizer_steps": progress.epoch * cell.steps_per_epoch
            + progress.step
            - progress.skipped_steps,
            "scaler_final_scale": progress.scale if cell.config.precision.scaler else None,
            "scaler_skipped_steps": progress.skipped_steps
            if cell.config.precision.scaler
            else None,
        }

    def _effective(self) -> dict[str, Any]:
        cell, plan = self._cell, self._cell.job.plan
        cuda, cpu = cell.device.type == "cuda", cell.device.type == "cpu"
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
            "kept_memory": host_memory.KEPT if cpu else None,
            "huge_pages": host_memory.huge_pages() if cpu else None,
            **vars(cell.speedups),
            "global_batch": plan.global_batch,
            "per_device_batch": plan.device_batch,
            "eval_batch": cell.eval_batch,
            "steps": cell.config.epochs * cell.steps_per_epoch,
            "train_images": cell.prepared.train_count,
            "test_images": cell.prepared.test_count,
            "data_digest": cell.prepared.digest,
            "code_digest": cell.code_digest,
            "data_placement": cell.train.placement,
            "fused_input": cell.train.fused,
            "image_size": cell.config.data.image_size,
            "outputs": cell.outputs,
            "threads": cell.threads,
        }

    def close(self) -> None:
        """Write what is left of the curves."""
        self._tracker.close()


def _forget_reasons(current: Record, figures: set[str]) -> None:
    """Drop what was said of these figures, by an earlier segment too: it is told anew."""
    known = figures.union(measured.INGREDIENTS)
    current.notes = [n for n in current.notes if not known.issuperset(_names(n))]


def _names(note: str) -> list[str]:
    """The figures of a note that gives a reason: `one, two: why`."""
    return note.partition(": ")[0].split(", ")


def _device_notes(metrics: dict[str, Any], ranks: list[dict[str, Any]]) -> list[str]:
    """What the devices' states say about the run's figures, and what a CPU has none of."""
    notes = []
    refused = sum(rank["refused_images"] for rank in ranks)
    if refused:
        notes.append(
            f"data.decode=device: {refused:,} times the host decoded a JPEG image that the device "
            "refused; the log names the first"
        )
    compiled = max(
        (c for rank in ranks if (c := rank["compiled"])), key=lambda c: c.uncompiled, default=None
    )
    if compiled and compiled.uncompiled:
        notes.append(
            f"memory.compile: {compiled.uncompiled} of {compiled.layers} convolutions and linear "
            "layers were left uncompiled"
        )
    if metrics["peak_allocated_mib"] is None:
        notes.append(
            "peak_allocated_mib, peak_reserved_mib, peak_cached_mib: no CUDA device; see "
            "peak_rss_mib, of the process, and peak_rss_above_mib, above what it was at its start"
        )
    gpus = [gpu for rank in ranks for gpu in rank["gpus_end"]]
    slowing = {name for gpu in gpus for name in gpu["throttle_reasons"] or ()} & SLOWING
    if slowing:
        notes.append(
            f"the GPU's clock was held down at the end of training: {', '.join(sorted(slowing))}"
        )
    if metrics.get("contended"):
        notes.append(
            "contended: another process used the device at the start or the end"
            if gpus
            else "contended: other processes used the cores that this run computed with"
        )
    return notes


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
