"""The benchmark of CPU cells against a loop written by hand, small."""

import csv
import math
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats

from benchmarks.cpu_cells.side_by_side import steady
from benchmarks.shared.ratio import interval

REPOSITORY = Path(__file__).parents[2]


def test_ratios_are_averaged_as_logarithms_with_the_interval_of_t() -> None:
    ratios = [0.5, 2.0, 1.0, 1.5]
    mean, low, high = interval(ratios)
    logs = [math.log(ratio) for ratio in ratios]
    found = stats.ttest_1samp(logs, 0.0).confidence_interval(0.95)
    assert mean == pytest.approx(math.prod(ratios) ** (1 / 4))
    assert (low, high) == (
        pytest.approx(math.exp(found.low)),
        pytest.approx(math.exp(found.high)),
    )
    assert interval([1.25]) == (pytest.approx(1.25), None, None)


def test_the_first_epoch_is_left_out_where_there_are_others() -> None:
    assert steady([9.0, 0.002, 0.001, 0.004]) == pytest.approx(2.0)
    assert steady([0.5]) == pytest.approx(500.0)


@pytest.mark.slow
def test_it_measures_both_contenders_and_writes_what_it_found(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "benchmarks.cpu_cells", "--cells", "ddp,scaler"),
            *("--epochs", "2", "--train-images", "64", "--repeats", "1", "--out", str(tmp_path)),
        ],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [row] = csv.DictReader((tmp_path / "cells.csv").read_text().splitlines())
    assert (row["parallel"], row["precision"]) == ("ddp", "scaler")
    assert float(row["ratio"]) == pytest.approx(float(row["ours_ms"]) / float(row["hand_ms"]))
    page = (tmp_path / "cells.md").read_text()
    assert "torch" in page and "load average" in page and "| ddp x scaler |" in page
