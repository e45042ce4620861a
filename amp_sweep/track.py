"""Curves for people: TensorBoard event files, or nothing. Never an input to a result."""

from pathlib import Path
from typing import Any, Protocol

from amp_sweep.record import Record

# What the HParams tab tells runs apart by: name there -> place in the record.
HPARAMS = {
    "parallel": ("cell", "parallel"),
    "precision": ("cell", "precision"),
    "seed": ("cell", "seed"),
    "model": ("cell", "model"),
    "data": ("cell", "data"),
    "image_size": ("effective", "image_size"),
    "global_batch": ("effective", "global_batch"),
    "world_size": ("effective", "world_size"),
    "replicas": ("effective", "replicas"),
    "autocast_dtype": ("effective", "autocast_dtype"),
    "device_type": ("effective", "device_type"),
    "optimizer": ("config", "optimizer", "name"),
    "lr": ("config", "optimizer", "lr"),
    "scheduler": ("config", "scheduler", "name"),
    "epochs": ("config", "epochs"),
}

SWEPT = ("parallel", "precision", "seed")

# Its figures, of the record's `metrics`. TensorBoard takes the columns of all runs from the
# first run that it finds, so every run names all of them, also those that it does not have.
FINAL = (
    "images_per_s",
    "train_time_s",
    "test_accuracy",
    "test_loss",
    "train_loss",
    "peak_allocated_mib",
    "peak_rss_mib",
    "step_ms_p50",
    "data_wait_frac",
    "mfu",
    "energy_j",
    "scaler_skipped_steps",
)


class Tracker(Protocol):
    """Somewhere scalars go."""

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point to the curve `tag`."""

    def begin(self, run: Record) -> None:
        """Enter the run among those that are compared; its `effective` is known."""

    def finish(self, run: Record, step: int) -> None:
        """Add its final figures, after the last of `step` steps; its `metrics` are known."""

    def close(self) -> None:
        """Write what is left."""


class NoTracker:
    """Takes everything, keeps nothing."""

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Forget it."""

    def begin(self, run: Record) -> None:
        """Forget it."""

    def finish(self, run: Record, step: int) -> None:
        """Forget it."""

    def close(self) -> None:
        """Nothing to write."""


class TensorBoard:
    """Event files in `folder`; points from `purge_step` on of an earlier segment are hidden."""

    def __init__(self, folder: Path, purge_step: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=purge_step)

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point to the curve `tag`."""
        self._writer.add_scalar(tag, value, step)

    def begin(self, run: Record) -> None:
        """Enter the run in the HParams tab; without its figures yet."""
        # SummaryWriter.add_hparams would make a directory, and so a run, of its own.
        columns, start, _ = _summaries(run)
        self._add(columns)
        self._add(start)

    def finish(self, run: Record, step: int) -> None:
        """Add the final figures that the run has, as curves of one point (`final/...`)."""
        for name in FINAL:
            if (value := _figure(run, name)) is not None:
                self._writer.add_scalar(f"final/{name}", value, step)
        self._add(_summaries(run)[2])

    def _add(self, summary: Any) -> None:
        if self._writer.file_writer is not None:
            self._writer.file_writer.add_summary(summary)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def open_tracker(name: str, folder: Path, purge_step: int | None = None) -> Tracker:
    """The tracker of `track.name`."""
    return TensorBoard(folder, purge_step) if name == "tensorboard" else NoTracker()


def _summaries(run: Record) -> tuple[Any, Any, Any]:
    """TensorBoard's messages: which columns there are, this run's settings, its end."""
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData
    from torch.utils.tensorboard.summary import hparams

    settings = {name: _setting(run, place) for name, place in HPARAMS.items()}
    figures = dict.fromkeys(f"final/{name}" for name in FINAL)
    columns, start, end = hparams(settings, figures)  # type: ignore[no-untyped-call]
    # TensorBoard shows beside each curve only what it is told to differ between the runs.
    data = columns.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(data.content)
    for info in content.experiment.hparam_infos:
        info.differs = info.name in SWEPT or _is_override(run, HPARAMS[info.name])
    data.content = content.SerializeToString()
    return columns, start, end


def _is_override(run: Record, place: tuple[str, ...]) -> bool:
    """Whether a person set this field for the run, so that it may be an axis of the sweep."""
    names = {text.lstrip("+").split("=", 1)[0] for text in run.overrides}
    return place[0] == "config" and not names.isdisjoint((place[1], ".".join(place[1:])))


def _setting(run: Record, place: tuple[str, ...]) -> str | float:
    value: Any = vars(run)
    for name in place:
        value = value.get(name)
    return value if isinstance(value, int | float | str) else "none"


def _figure(run: Record, name: str) -> float | None:
    """One of the run's metrics; of a list per device the largest."""
    value = run.metrics.get(name)
    if isinstance(value, list):
        value = max((item for item in value if item is not None), default=None)
    return value
