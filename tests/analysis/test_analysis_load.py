import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from amp_sweep import record
from analysis import key
from analysis.axes import where
from analysis.columns import SECTIONS
from analysis.compare import compare
from analysis.frame import load, load_with_files, swept_axes
from tests.analysis.synthetic import write_run
from tests.conftest import python_path

Make = Callable[..., Path]


def edit(run_dir: Path, **changes: object) -> None:
    path = run_dir / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_full_matrix_gives_a_row_per_run_with_fixed_types(make_matrix: Make) -> None:
    frame, problems = load(make_matrix())
    assert problems == []
    assert len(frame) == 9
    for known in SECTIONS.values():
        for name, kind in known.items():
            if name in frame:
                assert frame[name].dtype == kind or name == "parallel"
    assert set(zip(frame["parallel"], frame["precision"], strict=True)) == {
        (p, q) for p in ("none", "dp", "ddp") for q in ("fp32", "autocast", "scaler")
    }


def test_integers_stay_integers_and_nulls_stay_null_beside_failed_runs(
    make_matrix: Make, tmp_path: Path
) -> None:
    frame, _ = load(make_matrix(but={("dp", "scaler"): {"status": "failed"}}))
    failed = frame[frame["status"] == "failed"].iloc[0]
    assert failed["scaler_skipped_steps"] is pd.NA
    assert failed["test_accuracy"] is pd.NA
    assert frame["scaler_skipped_steps"].dtype == "Int64"
    frame.to_csv(tmp_path / "cells.csv", index=False)
    line = (tmp_path / "cells.csv").read_text().splitlines()[1].split(",")
    header = (tmp_path / "cells.csv").read_text().splitlines()[0].split(",")
    assert line[header.index("seed")] == "0"
    assert line[header.index("scaler_skipped_steps")] == "0"


def test_a_figure_that_is_null_in_every_run_keeps_its_type(make_run: Make) -> None:
    frame, _ = load(make_run(metrics={"energy_j": None, "scaler_skipped_steps": None}))
    assert frame["energy_j"].dtype == "Float64"
    assert frame["scaler_skipped_steps"].dtype == "Int64"
    assert frame["test_loss"].isna().all()


def test_every_figure_of_a_record_has_a_column_of_a_fixed_type(make_run: Make) -> None:
    for path in record.find(Path(__file__).parents[2] / "outputs" / "reference"):
        found = vars(record.read(path))
        for section, known in SECTIONS.items():
            assert set(found[section]) <= set(known), path
    frame, _ = load(make_run(metrics={"peak_cached_mib": None, "memory_rounding_mib": [1.0, 2.0]}))
    assert frame["peak_cached_mib"].dtype == "Float64"
    assert frame["memory_rounding_mib"].tolist() == [2.0]


def test_figures_that_this_version_does_not_know_become_typed_columns(make_matrix: Make) -> None:
    new = {"halvings": 3, "noise": 0.5, "odd": True, "words": ["a", "b"], "torch": "x"}
    frame, problems = load(
        make_matrix(metrics=new, but={("dp", "fp32"): {"metrics": dict.fromkeys(new)}})
    )
    assert problems == []
    kinds = {name: str(frame[name].dtype) for name in ("halvings", "noise", "odd", "words")}
    assert kinds == {"halvings": "Int64", "noise": "Float64", "odd": "boolean", "words": "string"}
    assert frame["words"].dropna().iloc[0] == "a | b"
    # `torch` is the environment's name: the stranger's column begins with its section.
    assert frame["torch"].iloc[0] == "2.14.1"
    assert frame["metrics_torch"].dropna().iloc[0] == "x"


def test_memory_is_the_fullest_device_and_all_devices_as_text(make_run: Make) -> None:
    frame, _ = load(make_run("ddp", gpu=True))
    assert frame["peak_allocated_mib"].tolist() == [640.5]
    assert frame["peak_allocated_mib_each"].tolist() == ["512.0 | 640.5"]
    assert frame["devices"].tolist() == [2]
    frame, _ = load(make_run("dp", gpu=True, metrics={"peak_allocated_mib": None}))
    assert frame["peak_allocated_mib_each"].isna().all()
    assert frame["devices"].tolist() == [2]  # of one process


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a record"),
        ('{"schema_version": 1, "name"', "not a record"),
        ("[1, 2]", "no JSON object"),
        ('{"schema_version": 99}', "schema version 99"),
        ('{"schema_version": 1, "name": "x"}', "no field 'fingerprint'"),
        ("\x00\x01garbage", "not a record"),
        ('{"schema_version": 1, "name": NaN}', "NaN"),
        ('{"schema_version": 1, "name": 1e999}', "beyond a float"),
    ],
)
def test_a_bad_file_is_reported_by_path_and_passed_over(
    make_matrix: Make, text: str, reason: str
) -> None:
    sweep = make_matrix()
    bad = sweep / "zz-bad" / "record.json"
    bad.parent.mkdir()
    bad.write_text(text)
    frame, problems = load(sweep)
    assert len(frame) == 9
    [problem] = problems
    assert problem.startswith(f"{bad}: ")
    assert reason in problem


def test_a_value_of_a_wrong_type_is_reported_and_null(make_run: Make) -> None:
    run = make_run(metrics={"test_accuracy": "high", "scaler_skipped_steps": 1.5})
    path = run / "record.json"
    frame, problems = load(run)
    assert frame["test_accuracy"].isna().all()
    assert len(problems) == 2
    assert all(problem.startswith(str(path)) for problem in problems)
    assert "'high' is not a number" in problems[0]
    second = make_run(seed=1, metrics={"energy_j": "low"}, effective={"world_size": "two"})
    third = make_run(seed=2, effective={"world_size": "two"})
    told = [problem.split("/record.json: ")[0] for problem in load(run, second, third)[1]]
    assert told == [*(str(run),) * 2, *(str(second),) * 2, str(third)]  # by run


def test_numbers_beyond_a_column_are_reported_and_null(make_run: Make) -> None:
    frame, problems = load(make_run(metrics={"scaler_skipped_steps": 2**70, "mfu": 10**400}))
    assert frame["scaler_skipped_steps"].isna().all()
    assert frame["mfu"].isna().all()
    assert len(problems) == 2


def test_schema_versions_that_stand_together_are_stated(make_run: Make) -> None:
    edit(make_run(), schema_version=0)
    _, problems = load(make_run("ddp").parent)
    assert problems == ["records of different schema versions stand together: 0 (1 run), 1 (1 run)"]


def test_a_missing_directory_is_a_problem_and_the_others_are_read(
    make_run: Make, tmp_path: Path
) -> None:
    frame, problems = load(tmp_path / "nowhere", make_run())
    assert len(frame) == 1
    assert problems == [f"{tmp_path / 'nowhere'}: no such directory"]


def test_the_folder_above_the_sweeps_is_told_which_sweeps_it_holds(
    make_run: Make, tmp_path: Path
) -> None:
    run = make_run()
    frame, problems = load(tmp_path)
    assert frame.empty
    assert problems == [f"{tmp_path}: no run records, but it holds sweeps: {run.parent}"]


def test_the_same_directory_twice_is_read_once(make_run: Make) -> None:
    run = make_run()
    frame, problems = load(run.parent, run, run.parent)
    assert len(frame) == 1
    assert problems == []


def test_of_two_completed_runs_of_the_same_settings_the_newest_counts(make_run: Make) -> None:
    old = make_run(sweep="one", ended_at="2026-01-01T00:00:00+00:00")
    new = make_run(sweep="two", ended_at="2026-01-02T00:00:00+00:00")
    for order in ((old, new), (new, old)):
        frame, problems = load(*order)
        assert frame["run_dir"].tolist() == [str(new)]
        assert len(problems) == 1
        assert problems[0].startswith("1 run is left out")
        assert str(old) in problems[0]


def test_rows_have_their_own_files_in_the_order_of_the_directories(make_run: Make) -> None:
    runs = [make_run(sweep=name, seed=seed) for name, seed in (("b", 0), ("a", 0), ("a", 1))]
    later = make_run(sweep="c", seed=1, ended_at="2026-01-02T00:00:00+00:00")
    frame, files, _ = load_with_files(*runs, later)
    assert frame["run_dir"].tolist() == [str(path.parent) for path in files]
    assert len(files) == 2 and files[1].parent == later


def test_times_of_ending_may_be_seconds_since_1970(make_run: Make) -> None:
    old = make_run(sweep="one", ended_at=1_700_000_000.5)
    new = make_run(sweep="two", ended_at=1_800_000_000)
    assert load(old, new)[0]["run_dir"].tolist() == [str(new)]


@pytest.mark.parametrize("ended_at", [None, "soon", "", 10**400, [1], True])
def test_an_end_that_is_no_time_falls_back_to_the_files_own(make_run: Make, ended_at: Any) -> None:
    run = make_run(ended_at=ended_at)
    old = make_run(sweep="old", ended_at="2026-01-01T00:00:00+00:00")
    os.utime(run / "record.json", (1.8e9, 1.8e9))
    assert load(run, old)[0]["run_dir"].tolist() == [str(run)]


def test_a_completed_run_counts_before_a_newer_one_that_is_not(make_run: Make) -> None:
    done = make_run(sweep="one")
    make_run(sweep="two", status="failed", ended_at="2027-01-01T00:00:00+00:00")
    pending = make_run(sweep="three", status="pending")
    frame, problems = load(done.parent, done.parent.parent / "two", pending.parent)
    assert frame["status"].tolist() == ["completed"]
    assert problems[0].startswith("2 runs are left out")
    assert "more" not in problems[0]
    for place in ("four", "five", "six"):
        make_run(sweep=place, status="pending")
    _, (problem,) = load(*(path for path in done.parents[1].iterdir()))
    assert problem.startswith("5 runs are left out")
    assert problem.endswith(" and 2 more")


def test_the_same_settings_on_another_gpu_are_another_run(make_run: Make) -> None:
    first = make_run(sweep="one", gpu=True)
    second = make_run(sweep="two", gpu=True, effective={"device_names": ["NVIDIA A100"]})
    failed = make_run(
        sweep="three", gpu=True, status="oom", effective={"device_names": ["NVIDIA T4"]}
    )
    frame, problems = load(first, second, failed)
    assert len(frame) == 3
    assert problems == []


def test_each_swept_axis_is_a_column_and_what_is_the_same_everywhere_is_not(
    make_run: Make,
) -> None:
    for batch in (64, 128):
        make_run(
            overrides=(
                *(f" +data.batch_size = {batch}", "epochs=3", f"name=n{batch}", "+launch.x=1"),
                *(f"hydra/launcher={batch}", f"hydra.verbose={batch}"),
            ),
            settings={"data.batch_size": batch},
        )
    frame, _ = load(make_run("ddp", overrides=("epochs=3",)).parent)
    # Where it was not typed, it is what the run had all the same.
    assert sorted(frame["data.batch_size"]) == ["128", "64", "64"]
    assert "epochs" not in frame
    assert not [name for name in frame if str(name).startswith(("launch", "hydra", "name."))]
    assert frame["parallel"].tolist().count("none") == 2  # a column already, and no second one


def test_an_axis_that_says_more_than_its_column_gets_a_column_of_its_own(make_run: Make) -> None:
    make_run(overrides=("model=alexnet_small",), settings={"model.width": 0.25})
    frame, _ = load(make_run(overrides=("model=alexnet",), settings={"model.width": 0.5}).parent)
    assert frame["model"].unique().tolist() == ["alexnet"]
    assert sorted(frame["overrides.model"]) == ["alexnet", "alexnet_small"]


def test_a_run_from_before_a_setting_stands_beside_those_that_leave_it_alone(
    make_run: Make,
) -> None:
    old = make_run("ddp", seed=0)
    sweep = make_run(
        "ddp",
        seed=1,
        settings={"parallel.find_unused_parameters": False, "memory.cuda_graph": False},
    ).parent
    found = record.read(old / "record.json").config
    del found["parallel"]["find_unused_parameters"], found["memory"]["cuda_graph"]
    edit(old, config=found)
    (table,) = compare(load(sweep)[0]).tables
    assert list(table.cells) == [("ddp", "fp32")]


def test_an_axis_that_its_column_tells_is_no_second_one(make_run: Make) -> None:
    make_run(overrides=("model=alexnet",), settings={"model.name": "alexnet"})
    make_run("dp", overrides=("model=vgg",), settings={"model.name": "vgg"})
    path = make_run("ddp", status="pending")
    edit(path, config={})
    frame, _ = load(path.parent)
    assert "overrides.model" not in frame


def test_an_axis_counts_as_swept_where_one_run_does_not_set_it() -> None:
    assert swept_axes(["a=1 | b=2", "a=1", None], lambda _: None) == {
        "a": ["1", "1", None],
        "b": ["2", None, None],
    }


def test_an_axis_that_a_run_does_not_set_has_the_runs_own_setting(make_run: Make) -> None:
    make_run(overrides=("model.width=0.5",), settings={"model.width": 0.5})
    sweep = make_run(
        overrides=("optimizer.lr=1e-2", "data.root=/images"),
        settings={"optimizer.lr": 0.01, "data.name": "imagefolder", "data.root": "/images"},
    ).parent
    make_run("ddp", settings={"optimizer.lr": 0.01})
    frame, _ = load(sweep)
    by_run = frame.set_index(frame["parallel"] + frame["data"])
    assert by_run["optimizer.lr"].to_dict() == {
        "nonedigits": "0.001",
        "noneimagefolder": "1e-2",
        "ddpdigits": "1e-2",  # the same setting in the form that was typed
    }
    assert sorted(by_run["model.width"]) == ["0.25", "0.25", "0.5"]
    titles = " ".join(table.title for table in compare(frame).tables)
    assert "model.width=0.25" in titles
    assert "data.root=/images" in titles
    assert "null" not in titles
    assert len(where(frame, {"optimizer.lr": ["0.001"]})) == 1


def test_a_group_that_a_run_does_not_set_is_named_by_its_config(make_run: Make) -> None:
    make_run(overrides=("optimizer=sgd",), settings={"optimizer.name": "sgd"})
    frame, _ = load(make_run().parent)
    assert sorted(frame["optimizer"]) == ["adamw", "sgd"]


def test_texts_of_records_are_one_printable_line(make_run: Make) -> None:
    error = {"type": "E", "message": "a\nb\x1b[31m\ud800", "traceback": "", "rank": 0}
    frame, _ = load(make_run(status="failed", error=error))
    assert frame["error_message"].tolist() == ["a b [31m?"]


def test_the_key_has_the_fields_of_the_fingerprint_and_no_others(make_run: Make) -> None:
    for settings in ({}, {"data.name": "imagefolder", "data.root": "/images"}):
        run = record.read(make_run(settings=settings) / "record.json")
        columns = {f"config.{name}": value for name, value in record.flatten(run.config).items()}
        assert key.identity(columns) == record.identity(record.flatten(run.config))
        assert ("data.root" in key.identity(columns)) == bool(settings)


def test_importing_it_brings_in_neither_torch_nor_hydra() -> None:
    code = (
        "import sys, analysis.__main__ as m; "
        "print(sorted({n.split('.')[0] for n in sys.modules} & "
        "{'torch', 'hydra', 'omegaconf', 'matplotlib', 'scipy'}), "
        "sorted(n for n in sys.modules if n.startswith('amp_sweep.')))"
    )
    environment = {**os.environ, "PYTHONPATH": python_path(Path(key.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split("] ")[0] == "["
    assert done.stdout.strip().endswith("['amp_sweep.paths', 'amp_sweep.record']")


def in_place_of_a_record(run_dir: Path, what: str) -> Path:
    """Puts something that is no regular file where a run's record was."""
    path = run_dir / "record.json"
    path.unlink()
    if what == "fifo":
        os.mkfifo(path)
    elif what == "socket":
        with contextlib.chdir(run_dir), socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)  # a whole path may be too long
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    return path


@pytest.mark.parametrize("what", ["fifo", "socket", "folder", "device"])
def test_what_is_no_regular_file_is_named_and_passed_over(make_matrix: Make, what: str) -> None:
    sweep = make_matrix()
    path = in_place_of_a_record(record.find(sweep)[3].parent, what)
    frame, problems = load(sweep)
    assert len(frame) == 8
    assert problems == [f"{path}: not a regular file"]
    frame, problems = load(path.parent)  # the run's own directory
    assert frame.empty
    assert problems == [f"{path}: not a regular file"]


def test_the_directory_of_a_run_is_its_path_as_it_is(tmp_path: Path) -> None:
    for number, name in enumerate((" two  spaces ", "a\nline", "\x1b[31m")):
        write_run(tmp_path, seed=number, sweep=name)
    folders = sorted(path for path in tmp_path.iterdir() if path.is_dir())
    frame, problems = load(*folders)
    assert problems == []
    paths = frame["run_dir"].tolist()
    assert [Path(path).parent for path in paths] == folders
    assert all((Path(path) / "record.json").is_file() for path in paths)


def test_a_directory_whose_name_is_no_text_is_read_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / b"\xff".decode("utf-8", "surrogateescape")
    folder.mkdir()
    write_run(folder)
    frame, problems = load(folder / "matrix")
    assert problems == []
    assert "/?/matrix/" in frame["run_dir"].item()


def test_control_characters_of_a_directory_reach_no_message(tmp_path: Path) -> None:
    write_run(tmp_path, sweep="\x1b[31m  x")
    write_run(tmp_path, "dp", sweep="\x1b[31m  x", status="failed", error={"message": "no"})
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    frame, _ = load(folder)
    comparison = compare(frame)
    (missing,) = comparison.tables[0].missing
    assert " [31m x/" in missing and "\x1b" not in missing
