import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis import axes, pivot
from analysis.__main__ import main
from analysis.compare import compare
from analysis.frame import load, rows_of
from analysis.pivot import Pivot
from analysis.statistics import Interval
from tests.analysis.synthetic import TRUTHS, write_run, write_sweep

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
                gpu=True,
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
    # Without batch_size on an axis, its values stand in pivots of their own, in their order.
    for batch in (8, 16):
        write_run(
            batches.parent,
            gpu=True,
            settings={"data.batch_size": batch},
            overrides=(f"data.batch_size={batch}",),
        )
    found = pivots("parallel", "precision", "images_per_s", batches)
    assert [each.title for each in found] == [
        f"alexnet on digits, data.batch_size={batch}" for batch in (8, 16, 64, 128)
    ]
    assert found[2].entries["none", "fp32"].n == 2


def test_two_gpus_are_apart_unless_they_are_the_axis(make_matrix: Make) -> None:
    first = make_matrix(sweep="a", gpu=True)
    second = make_matrix(sweep="b", gpu=True, effective={"device_names": ["NVIDIA A100"]})
    assert len(pivots("parallel", "precision", "time", first, second)) == 2
    found = pivots("precision", "device_name", "images/s", first, second)
    assert len(found) == 3  # one per parallelism
    assert found[0].columns == ("NVIDIA A100", "NVIDIA H200")


@pytest.mark.parametrize(
    ("axis", "one", "other", "titles"),
    [
        ("device_name", {"torch": "2.13.0"}, {"torch": "2.14.1"}, ["torch=2.13.0", "torch=2.14.1"]),
        ("cpu", {"devices": 0}, {"devices": 1}, ["device_name=Intel Xeon", "device_name=NVIDIA"]),
        ("sweep", {"devices": 0}, {"devices": 1}, ["device_name=Intel Xeon", "device_name=NVIDIA"]),
        ("model", {"width": 0.5}, {"width": 1.0}, ["model.width=0.5", "model.width=1.0"]),
        ("parallel.devices", {"devices": 2}, {"devices": 4}, ["parallel=ddp on 2", "ddp on 4"]),
    ],
)
def test_runs_that_differ_in_what_an_axis_stands_for_are_apart(
    make_run: Make, axis: str, one: dict[str, Any], other: dict[str, Any], titles: list[str]
) -> None:
    for seed, own in enumerate((one, other)):
        devices = own.get("devices", 1)
        names = ["NVIDIA H200"] * devices
        sweep = make_run(
            "ddp",
            seed=seed,
            gpu=devices > 0,
            settings={"model.width": own.get("width", 0.25)},
            effective={"world_size": devices, "device_names": names} if devices else None,
            environment={"torch": own.get("torch", "2.14.1")},
        ).parent
    found = pivots(axis, "precision", "images/s", sweep)
    assert [entry.n for each in found for entry in each.entries.values()] == [1, 1]
    for each, title in zip(found, titles, strict=True):
        assert title in each.title


def test_an_axis_explains_the_variants_of_its_own_field(make_run: Make) -> None:
    for devices in (2, 4):
        names = ["NVIDIA H200"] * devices
        make_run(
            "ddp",
            gpu=True,
            settings={"parallel.devices": devices},
            effective={"world_size": devices, "device_names": names},
        )
    make_run("ddp", "autocast", gpu=True, status="pending")
    sweep = make_run("ddp", gpu=True, settings={"precision.tf32": True}).parent
    [found] = pivots("devices", "precision", "time", sweep)
    assert found.rows == ("2", "4", "null")
    [_, found] = pivots("precision.tf32", "parallel", "time", sweep)
    assert found.rows == ("false", "true")
    [found] = pivots("parallel", "precision", "time", sweep)
    assert found.columns == ("fp32 (tf32=false)", "fp32 (tf32=true)", "autocast")


def test_speed_ups_relate_to_the_baseline_of_the_runs_own_table(batches: Path) -> None:
    found = pivots("data.batch_size", "precision", "speed-up", batches)
    assert {entry.value for entry in found[0].entries.values()} == {1.0}
    assert found[0].entries["64", "fp32"].parts[0] == "1.00x"
    [found_alone] = pivots("parallel", "precision", "speed-up", next(batches.glob("dp-*")))
    [entry] = found_alone.entries.values()  # there is no baseline
    assert (entry.value, entry.n, entry.status) == (None, 1, "completed")


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


def test_some_seeds_of_a_cell_have_the_figures_that_they_have_alone(make_run: Make) -> None:
    for sweep, seeds in (("one", (2, 10)), ("two", (3,))):
        for seed in seeds:
            metrics = {"images_per_s": 100.0 + 10 * seed}
            make_run(seed=seed, sweep=sweep, metrics=metrics)
            metrics = {"images_per_s": 150.0 + 16 * seed}
            made = make_run("dp", seed=seed, sweep=sweep, metrics=metrics)
            status = "failed" if seed == 10 else "completed"
            make_run("ddp", seed=seed, sweep=sweep, status=status, metrics=metrics)
    one, two = made.parents[1] / "one", made.parents[1] / "two"
    [both] = pivots("parallel", "sweep", "images/s", one, two)
    alone = pivot.of_table(compare(load(one)[0]).tables[0], "images/s")
    for parallel in both.rows:
        part, whole = both.entries[parallel, "one"], alone.entries[parallel, "fp32"]
        assert replace(part, run_dirs=(), verdict=whole.verdict) == replace(whole, run_dirs=())


def test_the_matrix_of_a_table_is_the_same_pivot(batches: Path) -> None:
    frame = load(batches)[0]
    comparison = compare(frame)
    for metric in ("time", "images/s", "speed-up", "memory", "accuracy"):
        of_frame = pivot.of_frame(frame, comparison, "parallel", "precision", metric)
        for table, other in zip(comparison.tables, of_frame, strict=True):
            own = pivot.of_table(table, metric)
            assert own == other


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


def test_the_long_form_has_every_figure_of_every_place(tmp_path: Path) -> None:
    truths = {at: truth for at, truth in TRUTHS.items() if at != ("dp", "autocast")}
    sweep = write_sweep(tmp_path, truths, 3)
    [table] = compare(load(sweep)[0]).tables
    for metric in ("images/s", "speed-up"):
        long = pivot.long_form(pivots("parallel", "precision", metric, sweep))
        assert len(long) == 9
        for row in rows_of(long):
            cell = table.cells[row["parallel"], row["precision"]]
            figure, effect = cell.figures["images_per_s"], cell.effects.get("images_per_s")
            if effect is None:
                expected = (None, None, 0, None, None)
            elif metric == "images/s":
                expected = (figure.mean, figure.sd, 3, figure.interval, effect.verdict)
            else:
                expected = (effect.estimate, None, 3, effect.interval, effect.verdict)
            spread = None if row["low"] is None else Interval(row["low"], row["high"])
            found = (row["value"], row["sd"], row["n"], spread, row["verdict"])
            assert found == (*expected[:4], expected[4] or None)
        status = long.set_index(["parallel", "precision"])["status"]
        assert status["dp", "scaler"] == "failed"
        assert status["dp", "autocast"] == "-"
        assert (status == "completed").sum() == 7
    assert {"faster", "slower"} <= set(long["verdict"])


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
    tex, html = ((out / f"pivot.{suffix}").read_text() for suffix in ("tex", "html"))
    captions = re.findall(r"\\caption\{(.*)\}\n\\label\{tab:amp-sweep-pivot-(\d)\}", tex)
    parts = [f"alexnet on digits, parallel={name}" for name in ("ddp", "dp", "none")]
    figures = [f"{part}: {metric}" for metric in ("images/s", "accuracy") for part in parts]
    assert captions == [(figure, str(number)) for number, figure in enumerate(figures, 1)]
    assert re.findall("<h2>(.*)</h2>", html) == parts * 2


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
    [found] = pivot.of_frame(frame, compare(frame), "precision", "data.root", "time")
    assert pivot.grid(found).headings == ["time", "root=null"]
    [found] = pivot.of_frame(frame, compare(frame), "precision", "parallel", "memory")
    assert found.metric == "peak_rss_mib"  # of a CPU
