"""Curves: readable event files, or nothing at all."""

from pathlib import Path

from amp_sweep import track


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_reads_back_what_was_tracked(tmp_path: Path) -> None:
    tracker = track.open_tracker("tensorboard", tmp_path / "curves")
    for step, value in ((1, 2.5), (2, 1.25)):
        tracker.scalar("train/loss", value, step)
    tracker.close()
    assert curve(tmp_path / "curves", "train/loss") == [(1, 2.5), (2, 1.25)]


def test_points_after_the_resumption_replace_those_of_the_earlier_segment(tmp_path: Path) -> None:
    first = track.open_tracker("tensorboard", tmp_path)
    for step in range(1, 6):
        first.scalar("train/loss", float(step), step)
    first.close()
    second = track.open_tracker("tensorboard", tmp_path, purge_step=4)
    for step in range(4, 8):
        second.scalar("train/loss", 10.0 * step, step)
    second.close()
    assert curve(tmp_path, "train/loss") == [
        *((1, 1.0), (2, 2.0), (3, 3.0)),
        *((4, 40.0), (5, 50.0), (6, 60.0), (7, 70.0)),
    ]


def test_no_tracking_writes_nothing(tmp_path: Path) -> None:
    tracker = track.open_tracker("none", tmp_path / "curves")
    tracker.scalar("train/loss", 1.0, 1)
    tracker.close()
    assert list(tmp_path.iterdir()) == []
