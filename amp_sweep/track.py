"""Curves for people: TensorBoard event files, or nothing. Never an input to a result."""

from pathlib import Path
from typing import Protocol


class Tracker(Protocol):
    """Somewhere scalars go."""

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point to the curve `tag`."""

    def close(self) -> None:
        """Write what is left."""


class NoTracker:
    """Takes everything, keeps nothing."""

    def scalar(self, tag: str, value: float, step: int) -> None:
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

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


def open_tracker(name: str, folder: Path, purge_step: int | None = None) -> Tracker:
    """The tracker of `track.name`."""
    return TensorBoard(folder, purge_step) if name == "tensorboard" else NoTracker()
