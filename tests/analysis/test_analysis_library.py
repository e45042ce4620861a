"""What a notebook sees: `analysis.load` and `analysis.load_epochs`."""

import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import analysis
from amp_sweep import record
from analysis.library import EPOCH_COLUMNS, RUN_COLUMNS

Make = Callable[..., Path]


def with_epochs(run_dir: Path, *epochs: dict[str, Any]) -> Path:
    path = run_dir / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"epochs": list(epochs)}))
    return run_dir


def test_importing_a_module_of_the_package_leaves_the_function_in_its_place() -> None:
    code = "import analysis, analysis.compare, analysis.frame; print(callable(analysis.load))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_a_folder_may_be_text_or_a_path_and_gives_one_row_per_run(make_matrix: Make) -> None:
    sweep = make_matrix()
    frame = analysis.load(str(sweep))
    assert len(frame) == 9
    pd.testing.assert_frame_equal(frame, analysis.load(sweep))
    # The matrix's maker: dp takes twice, autocast half of 8 s.
    pivot = frame.pivot_table(index="parallel", columns="precision", values="train_time_s")
    assert pivot.loc["dp", "autocast"] == 8.0


def test_every_column_has_one_of_four_types_whatever_the_runs_say(
    make_run: Make, tmp_path: Path
) -> None:
    make_run(metrics={"test_accuracy": None, "mfu": 1, "diagnosis": "mixed"})
    full = analysis.load(tmp_path / "matrix")
    with pytest.warns(analysis.RecordWarning, match="no such directory"):
        empty = analysis.load(tmp_path / "nowhere")
    assert set(map(str, full.dtypes)) == {"string", "Int64", "Float64", "boolean"}
    shared = [name for name in empty if not str(name).startswith("config.")]
    assert len(shared) > 100
    pd.testing.assert_series_equal(full[shared].dtypes, empty[shared].dtypes)


def test_what_is_passed_over_is_one_warning_each_where_it_was_called(make_matrix: Make) -> None:
    sweep = make_matrix(metrics={"mfu": "high"}, but={("dp", "fp32"): {"status": "failed"}})
    (sweep / "zz").mkdir()
    (sweep / "zz" / "record.json").write_text("{")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        frame = analysis.load(sweep)
    assert len(frame) == 9
    assert len(told) == 1 + 9
    assert {warning.category for warning in told} == {analysis.RecordWarning}
    assert {warning.filename for warning in told} == {__file__}
    assert issubclass(analysis.RecordWarning, UserWarning)


def test_epochs_are_a_row_each_with_the_run_that_they_belong_to(make_run: Make) -> None:
    with_epochs(
        make_run(), *({"epoch": n, "lr": 0.1 / n, "images_per_s": 1000.0 + n} for n in (1, 2, 3))
    )
    with_epochs(make_run("ddp", seed=4), {"epoch": 1, "train_loss": 2, "test_accuracy": None})
    sweep = make_run("dp", status="pending").parent
    epochs = analysis.load_epochs(sweep)
    assert list(epochs) == [*RUN_COLUMNS, *EPOCH_COLUMNS]
    assert {name: str(epochs[name].dtype) for name in EPOCH_COLUMNS} == EPOCH_COLUMNS
    by_run = epochs.groupby("parallel")
    assert by_run.size().to_dict() == {"ddp": 1, "none": 3}
    assert by_run.get_group("none")["epoch"].tolist() == [1, 2, 3]
    assert by_run.get_group("none")["images_per_s"].tolist() == [1001.0, 1002.0, 1003.0]
    other = by_run.get_group("ddp").iloc[0]
    assert (other["seed"], other["train_loss"]) == (4, 2.0)
    assert other["test_accuracy"] is pd.NA and other["lr"] is pd.NA
    joined = epochs.merge(analysis.load(sweep), on="run_dir", suffixes=("", "_of_run"))
    assert len(joined) == 4


def test_epochs_are_those_of_the_runs_that_load_gives(make_run: Make) -> None:
    old = with_epochs(make_run(sweep="one", ended_at="2026-01-01T00:00:00"), {"epoch": 1})
    new = with_epochs(make_run(sweep="two", ended_at="2026-01-02T00:00:00"), {"epoch": 2})
    with pytest.warns(analysis.RecordWarning, match="1 run is left out"):
        epochs = analysis.load_epochs(old, new)
    assert epochs["epoch"].tolist() == [2]
    assert epochs["run_dir"].tolist() == [str(new)]


def test_unknown_and_unfit_values_of_epochs_are_columns_and_warnings(make_run: Make) -> None:
    run = with_epochs(
        make_run(),
        {"epoch": 1, "lr": "low", "gradient_norm": 3},
        {"epoch": 2, "lr": 0.5, "gradient_norm": 0.5, "name": "x"},
    )
    with pytest.warns(analysis.RecordWarning, match="epochs: lr: 'low' is not a number") as told:
        epochs = analysis.load_epochs(run)
    assert len(told) == 1
    assert epochs["lr"].isna().tolist() == [True, False]
    assert epochs["gradient_norm"].tolist() == [3.0, 0.5]
    assert epochs["name"].tolist() == ["matrix", "matrix"]
    assert epochs["epoch_name"].dropna().tolist() == ["x"]


def test_no_epochs_are_an_empty_frame_with_the_same_types(make_run: Make) -> None:
    epochs = analysis.load_epochs(make_run(status="pending"))
    assert len(epochs) == 0
    assert {name: str(epochs[name].dtype) for name in EPOCH_COLUMNS} == EPOCH_COLUMNS


def test_the_reference_runs_epochs_lead_to_the_accuracies_of_their_records() -> None:
    folder = Path(__file__).parents[2] / "outputs" / "reference"
    epochs = analysis.load_epochs(folder)
    last = epochs.sort_values("epoch").groupby("run_dir").last()["test_accuracy"]
    paths = record.find(folder)
    assert paths
    for path in paths:
        accuracy = record.read(path).metrics["test_accuracy"]
        assert math.isclose(last[str(path.parent)], accuracy)
