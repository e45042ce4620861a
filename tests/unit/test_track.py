"""Curves and the comparison of runs: readable event files, or nothing at all."""

from pathlib import Path
from typing import Any

import pytest

from amp_sweep import track
from amp_sweep.record import Record


def curve(folder: Path, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def hparams_tab(logdir: Path) -> tuple[Any, list[Any]]:
    """What TensorBoard's own HParams plug-in makes of a folder: columns, and entries."""
    from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
    from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
    from tensorboard.context import RequestContext
    from tensorboard.plugins.base_plugin import TBContext
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    files = EventMultiplexer()
    files.AddRunsFromDirectory(str(logdir))
    files.Reload()
    provider = MultiplexerDataProvider(files, str(logdir))
    plugin = backend_context.Context(TBContext(logdir=str(logdir), data_provider=provider))
    request, experiment = RequestContext(), "all"
    columns = plugin.experiment_from_metadata(
        request,
        experiment,
        True,
        plugin.hparams_metadata(request, experiment),
        plugin.hparams_from_data_provider(request, experiment, limit=None),
    )
    asked = api_pb2.ListSessionGroupsRequest(
        start_index=0,
        slice_size=100,
        allowed_statuses=[
            api_pb2.STATUS_UNKNOWN,
            api_pb2.STATUS_RUNNING,
            api_pb2.STATUS_SUCCESS,
            api_pb2.STATUS_FAILURE,
        ],
        include_metrics=True,
    )
    handler = list_session_groups.Handler(request, plugin, experiment, asked)
    return columns, list(handler.run().session_groups)


def test_what_may_differ_between_runs_is_shown_beside_their_curves(tmp_path: Path) -> None:
    found = run("none", "fp32")
    found.overrides = ["parallel=none", "+optimizer.lr=0.1", "data=digits"]
    tracker = track.open_tracker("tensorboard", tmp_path)
    tracker.begin(found)
    tracker.close()
    columns, _ = hparams_tab(tmp_path)
    differing = {info.name for info in columns.hparam_infos if info.differs}
    assert differing == {"parallel", "precision", "seed", "lr"}


def run(parallel: str, precision: str, seed: int = 0, **metrics: Any) -> Record:
    return Record(
        name="matrix",
        fingerprint="f",
        status="running",
        cell={"model": "alexnet", "data": "digits", "parallel": parallel, "precision": precision}
        | {"seed": seed},
        overrides=[],
        config={"optimizer": {"name": "adamw", "lr": 0.001}, "scheduler": {"name": "cosine"}},
        effective={"world_size": 1, "autocast_dtype": None},
        metrics=metrics,
    )


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
    tracker.begin(run("none", "fp32"))
    tracker.scalar("train/loss", 1.0, 1)
    tracker.finish(run("none", "fp32"), 1)
    tracker.close()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def compared(tmp_path: Path) -> tuple[Any, dict[str, Any]]:
    """Three runs as TensorBoard compares them: two that finished, one that did not."""
    runs = {
        "ddp-scaler-s1-x": run("ddp", "scaler", 1, images_per_s=3000.0, peak_rss_mib=[512.0, 640.0])
    }
    runs["none-fp32-s0-x"] = run("none", "fp32", images_per_s=1500.0, mfu=None, test_accuracy=0.9)
    runs["none-scaler-s0-x"] = run("none", "scaler")
    for name, found in runs.items():
        tracker = track.open_tracker("tensorboard", tmp_path / name / "tensorboard")
        tracker.begin(found)
        tracker.scalar("train/loss", 1.0, 1)
        if found.metrics:
            tracker.finish(found, 40)
        tracker.close()
    assert len(list(tmp_path.rglob("events.*"))) == len(runs)
    columns, entries = hparams_tab(tmp_path)
    return columns, {entry.name: entry for entry in entries}


def figures(entry: Any) -> dict[str, tuple[float, int]]:
    return {m.name.tag: (m.value, m.training_step) for m in entry.metric_values}


def test_the_hparams_tab_has_one_entry_per_run_under_the_runs_own_name(compared: Any) -> None:
    assert sorted(compared[1]) == [
        "ddp-scaler-s1-x/tensorboard",
        "none-fp32-s0-x/tensorboard",
        "none-scaler-s0-x/tensorboard",
    ]


def test_the_hparams_tab_tells_the_cells_apart(compared: Any) -> None:
    hparams = compared[1]["ddp-scaler-s1-x/tensorboard"].hparams
    assert hparams["parallel"].string_value == "ddp"
    assert hparams["precision"].string_value == "scaler"
    assert hparams["seed"].number_value == 1
    assert hparams["lr"].number_value == 0.001
    assert hparams["autocast_dtype"].string_value == "none"


def test_the_hparams_tab_shows_final_figures_at_their_step_and_the_fullest_device(
    compared: Any,
) -> None:
    assert figures(compared[1]["ddp-scaler-s1-x/tensorboard"]) == {
        "final/images_per_s": (3000.0, 40),
        "final/peak_rss_mib": (640.0, 40),
    }


def test_figures_that_the_first_run_does_not_have_are_columns_too(compared: Any) -> None:
    assert [info.name.tag for info in compared[0].metric_infos] == [
        f"final/{name}" for name in track.FINAL
    ]
    found = figures(compared[1]["none-fp32-s0-x/tensorboard"])
    assert found["final/test_accuracy"] == (pytest.approx(0.9), 40)
    assert "final/mfu" not in found


def test_a_run_that_did_not_finish_is_an_entry_without_figures_and_without_success(
    compared: Any,
) -> None:
    from tensorboard.plugins.hparams import api_pb2

    statuses = {name: entry.sessions[0].status for name, entry in compared[1].items()}
    unfinished = "none-scaler-s0-x/tensorboard"
    assert figures(compared[1][unfinished]) == {}
    assert statuses.pop(unfinished) == api_pb2.STATUS_UNKNOWN
    assert set(statuses.values()) == {api_pb2.STATUS_SUCCESS}


def test_a_resumed_run_stays_one_entry_with_the_figures_of_its_end(tmp_path: Path) -> None:
    first = track.open_tracker("tensorboard", tmp_path / "r")
    first.begin(run("none", "fp32"))
    first.close()
    second = track.open_tracker("tensorboard", tmp_path / "r", purge_step=21)
    second.begin(run("none", "fp32"))
    second.finish(run("none", "fp32", images_per_s=1500.0), 40)
    second.close()
    _, (entry,) = hparams_tab(tmp_path)
    assert len(entry.sessions) == 1
    assert figures(entry) == {"final/images_per_s": (1500.0, 40)}
