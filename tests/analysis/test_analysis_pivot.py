import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import axes, pivot
from analysis.__main__ import main
from analysis.compare import compare
from analysis.frame import load
from analysis.pivot import Pivot
from tests.analysis.synthetic import write_run

Make = Callable[..., Path]


def pivots(rows: str, columns: str, metric: str, *dirs: Path) -> tuple[Pivot, ...]:
    frame = load(*dirs)[0]
    return pivot.of_frame(frame, compare(frame), rows, columns, metric)


def values(found: Pivot) -> dict[tuple[str, str], Any]:
    return {at: entry.value for at, entry in found.entries.items()}


@pytest.fixture
def batches(make_matrix: Make) -> Path:
    """Two batch sizes, two seeds; twice the speed at the larger, dp x scaler failed there."""
    for seed in (0, 1):
        for batch in (64, 128):
            sweep = make_matrix(
                seed=seed,
                settings={"data.batch_size": batch},
                overrides=(f"data.batch_size={batch}",),
                metrics={"images_per_s": 10.0 * batch + seed},
                but={("dp", "scaler"): {"status": "failed" if batch == 128 else "completed"}},
            )
    return sweep


def test_any_two_axes_make_a_grid_and_the_rest_is_told_apart(batches: Path) -> None:
    found = pivots("data.batch_size", "precision", "images/s", batches)
    assert [each.title for each in found] == [
        "alexnet on digits, parallel=ddp",
        "alexnet on digits, parallel=dp",
        "alexnet on digits, parallel=none",
    ]
    dp = found[1]
    assert (dp.rows, dp.columns) == (("64", "128"), ("fp32", "autocast", "scaler"))
    # By hand: the mean of 10 batch and 10 batch + 1.
    assert values(dp) == {
        ("64", "fp32"): 640.5,
        ("64", "autocast"): 640.5,
        ("64", "scaler"): 640.5,
        ("128", "fp32"): 1280.5,
        ("128", "autocast"): 1280.5,
        ("128", "scaler"): None,
    }
    failed = dp.entries["128", "scaler"]
    assert (failed.parts, failed.status, failed.n) == (("FAILED",), "failed", 0)
    assert dp.entries["64", "fp32"].n == 2


def test_seeds_are_averaged_and_nothing_else(batches: Path) -> None:
    # Without batch_size on an axis, its values stand in pivots of their own.
    found = pivots("parallel", "precision", "images_per_s", batches)
    assert [each.title for each in found] == [
        "alexnet on digits, data.batch_size=64",
        "alexnet on digits, data.batch_size=128",
    ]
    assert found[0].entries["none", "fp32"].n == 2


def test_two_gpus_are_apart_unless_they_are_the_axis(make_matrix: Make) -> None:
    first = make_matrix(sweep="a", gpu=True)
    second = make_matrix(sweep="b", gpu=True, effective={"device_names": ["NVIDIA A100"]})
    assert len(pivots("parallel", "precision", "time", first, second)) == 2
    found = pivots("precision", "device_name", "images/s", first, second)
    assert len(found) == 3  # one per parallelism
    assert found[0].columns == ("NVIDIA A100", "NVIDIA H200")


def test_speed_ups_relate_to_the_baseline_of_the_runs_own_table(batches: Path) -> None:
    found = pivots("data.batch_size", "precision", "speed-up", batches)
    assert {entry.value for entry in found[0].entries.values()} == {1.0}
    assert found[0].entries["64", "fp32"].parts[0] == "1.00x"


def test_a_seed_may_be_an_axis(make_matrix: Make) -> None:
    for seed in (0, 1):
        sweep = make_matrix(seed=seed)
    [found] = [
        each for each in pivots("precision", "seed", "accuracy", sweep) if "=dp" in each.title
    ]
    assert found.columns == ("0", "1")
    # The maker: 0.97 and a tenth of a point per seed.
    assert found.entries["scaler", "1"].value == pytest.approx(0.971)
    speeds = pivots("precision", "seed", "speed-up", sweep)
    assert speeds[0].entries["autocast", "1"].value == pytest.approx(4.0)  # ddp: 2 x 2


def test_the_speed_up_of_a_seed_is_over_the_same_seed_of_the_baseline(make_run: Make) -> None:
    for seed, (base, other) in enumerate([(100.0, 150.0), (200.0, 500.0)]):
        make_run(seed=seed, metrics={"images_per_s": base})
        sweep = make_run("dp", seed=seed, metrics={"images_per_s": other}).parent
    [found] = pivots("parallel", "seed", "speed-up", sweep)
    assert values(found) == {
        ("none", "0"): 1.0,
        ("none", "1"): 1.0,
        ("dp", "0"): 1.5,
        ("dp", "1"): 2.5,
    }


def test_the_matrix_of_a_table_is_the_same_pivot(batches: Path) -> None:
    frame = load(batches)[0]
    comparison = compare(frame)
    for metric in ("time", "images/s", "speed-up", "memory", "accuracy"):
        of_frame = pivot.of_frame(frame, comparison, "parallel", "precision", metric)
        for table, other in zip(comparison.tables, of_frame, strict=True):
            own = pivot.of_table(table, metric)
            assert own.entries == other.entries


def test_sweeps_stand_side_by_side_even_with_the_same_settings(
    make_matrix: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    before = make_matrix(sweep="before", gpu=True)
    after = make_matrix(
        sweep="after",
        gpu=True,
        metrics={"images_per_s": 5000.0, "new_figure": 1.5},
        effective={"device_names": ["NVIDIA A100"]},
    )
    arguments = ["--cols", "sweep", "--rows", "precision", "--metric", "images/s"]
    out = ["--out", str(before.parent / "out"), "--format", "csv"]
    assert main([str(before), str(after), *arguments, *out, "--metric", "speed-up"]) == 0
    long = pd.read_csv(before.parent / "out" / "pivot.csv")
    none = long[long["table"].str.contains("parallel=none")]
    found = none.set_index(["metric", "sweep", "precision"])["value"].to_dict()
    # The maker: 2,000 images/s, autocast twice as many; each relates to its own baseline.
    assert found["images_per_s", "before", "autocast"] == 4000.0
    assert found["images_per_s", "after", "autocast"] == 5000.0
    assert found["speed-up", "before", "autocast"] == 2.0
    assert found["speed-up", "after", "autocast"] == 1.0
    printed = capsys.readouterr().out
    assert re.search("images/s +before +after", printed)
    assert "…" not in printed


def test_sweeps_of_one_name_are_told_apart_by_their_paths(tmp_path: Path) -> None:
    sweeps = [write_run(tmp_path / place).parent for place in ("here", "there")]
    frames = [load(sweep)[0] for sweep in sweeps]
    each = [(frame, compare(frame)) for frame in frames]
    [found] = pivot.of_sweeps(each, "precision", "sweep", "time")
    assert found.columns == tuple(map(str, sweeps))


def test_grids_that_are_too_wide_stand_below_each_other_and_whole(
    make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    for batch in range(10, 40):
        sweep = make_run(
            settings={"data.batch_size": batch, "data.batch_mode": "per_device"}
        ).parent
    assert main([str(sweep), "--cols", "data.batch_size", "--metric", "time", "--no-pictures"]) == 0
    printed = capsys.readouterr().out
    assert "batch_size=39" in printed
    assert "…" not in printed


def test_what_nobody_asked_for_is_a_dash(make_matrix: Make) -> None:
    [found] = pivots("parallel", "precision", "time", make_matrix(but={("dp", "fp32"): None}))
    entry = found.entries["dp", "fp32"]
    assert (entry.parts, entry.status) == (("-",), "")


@pytest.mark.parametrize(
    ("rows", "columns", "metric", "told"),
    [
        ("parallel", "precison", "time", "near it: precision"),
        ("parallel", "precision", "images_per_", "near it: images_per_s"),
        ("parallel", "precision", "hostname", "is not a figure"),
        ("parallel", "parallel", "time", "both parallel"),
    ],
)
def test_what_is_no_axis_or_figure_is_said_with_what_is_near(
    make_run: Make, rows: str, columns: str, metric: str, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        pivots(rows, columns, metric, make_run())


def test_the_command_writes_pivots_in_every_format_and_keeps_the_tables(
    batches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(batches), "--no-pictures"]) == 0
    table = (batches / "tables" / "comparison.md").read_text()
    capsys.readouterr()
    arguments = "--rows data.batch_size --cols precision --metric images/s --metric accuracy"
    assert main([str(batches), *arguments.split(), "--format", "csv,parquet,md,tex,html"]) == 0
    printed = capsys.readouterr().out
    assert "batch_size=128" in printed
    assert "FAILED" in printed
    assert "Fastest" not in printed
    out = batches / "tables"
    assert (out / "comparison.md").read_text() == table
    long = pd.read_csv(out / "pivot.csv")
    assert len(long) == 3 * 2 * 6  # parallelisms, figures, places
    assert long.equals(pd.read_parquet(out / "pivot.parquet").astype(long.dtypes))
    for name in ("pivot.md", "pivot.tex", "pivot.html"):
        assert "FAILED" in (out / name).read_text()


def test_filters_keep_the_runs_asked_for_and_overwrite_nothing(
    batches: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(batches), "--no-pictures", "--where", "precision=fp32,scaler"]
    assert main([*arguments, "--where", "data.batch_size=64"]) == 0
    printed = capsys.readouterr().out
    assert "12 of 12 cells completed" in printed
    assert "autocast" not in printed
    assert "Nothing written" in printed
    assert not (batches / "tables").exists()
    out = batches.parent / "part"
    assert main([*arguments, "--out", str(out)]) == 0
    assert len(pd.read_csv(out / "cells.csv")) == 24


@pytest.mark.parametrize(
    "text", ["precision", "precision=", "=fp32", "precision=fp64", "nothing=1"]
)
def test_a_filter_that_makes_no_sense_is_wrong_usage(make_run: Make, text: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(make_run()), "--where", text])
    assert ended.value.code == 2


def test_settings_are_found_by_their_own_name(make_run: Make) -> None:
    frame = load(make_run())[0]
    assert axes.column(frame, "optimizer.lr") == "config.optimizer.lr"
    assert axes.column(frame, "seed") == "seed"
