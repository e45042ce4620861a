"""The benchmarks run on a CPU, small, and say what they did."""

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from amp_sweep.data.jpeg import plain_size
from benchmarks import larger_data
from benchmarks.growth import ImagesRow, Line, line
from benchmarks.image_folder import Folder, files, make
from tests.conftest import REPOSITORY


@pytest.mark.slow
def test_the_benchmark_runs_on_a_cpu_and_writes_its_table(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--cpu", "--steps", "2", "--precision", "fp32",
         "--out", str(tmp_path)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    reached = {row["contender"]: row["results"][0].get("images_per_s") for row in results}
    assert set(reached) == {"bare", "ours", "article"}
    assert all(value and value > 0 for value in reached.values()), results
    table = (tmp_path / "table.md").read_text()
    assert "| ours | fp32 | 64 |" in table and "torch" in table
    assert table in done.stdout


def benchmark(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *arguments],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_the_benchmark_of_larger_data_runs_on_a_cpu_and_writes_its_table(tmp_path: Path) -> None:
    done = benchmark("larger_data", "--cpu", "--out", str(tmp_path), "--folder", str(tmp_path))
    found = json.loads((tmp_path / "results.json").read_text())
    rows = {name: results[0] for name, results in found["rows"].items()}
    absent = {name for name, row in rows.items() if "images_per_s" not in row}
    assert absent == {"ours_decode", "cell_decode"}
    assert {rows[name]["absent"] for name in absent} == {"needs a CUDA device"}
    for name in rows.keys() - absent:
        assert rows[name]["images_per_s"] > 0
        assert rows[name]["all_mib_end"] >= rows[name]["main_mib_end"] > 0
    assert 0 <= rows["cell"]["data_wait_frac"] <= 1
    assert rows["cell"]["data_placement"] == "workers"
    assert rows["cell_resident"]["data_placement"] == "device"
    table = (tmp_path / "table.md").read_text()
    assert table in done.stdout
    assert "| ours_decode | needs a CUDA device |" in table and "96 JPEG files" in table


@pytest.mark.slow
def test_the_benchmark_of_growth_runs_small_and_writes_its_tables(tmp_path: Path) -> None:
    done = benchmark("growth", "--small", "--out", str(tmp_path))
    found = json.loads((tmp_path / "growth.json").read_text())
    assert [row["images"] for row in found["images"]] == [64, 128, 256]
    assert all(row["seconds"] > 0 for row in found["images"])
    small, large = found["sweeps"]
    assert (small["cells"], large["cells"]) == (9, 18)
    for sweep in (small, large):
        for name in ("ends_s", "sweep_mib", "server_mib", "sweep_cpu_s"):
            assert len(sweep[name]) == sweep["cells"], name
        assert sweep["ends_s"] == sorted(sweep["ends_s"])
    # The sweep process holds nothing of the cells that are done.
    assert large["sweep_mib"][-1] - large["sweep_mib"][2] < 2
    page = (tmp_path / "README.md").read_text()
    assert done.stdout.rstrip() in page and "## Memory" in page


def test_the_line_through_memory_is_what_a_cell_adds() -> None:
    assert line([90, 99, 100, 102, 104, 106]) == Line(100, 106, pytest.approx(2))
    assert line([7, 7]).per_cell == pytest.approx(0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.98, 1.02, "within 3%"),
        (0.96, 1.02, "undecided"),
        (0.99, 1.04, "undecided"),
        (1.04, 1.2, "beyond 3%"),
        (0.8, 0.96, "beyond 3%"),
        (None, None, "one repeat"),
    ],
)
def test_the_verdict_on_images_goes_by_the_whole_interval(
    low: float | None, high: float | None, verdict: str
) -> None:
    assert ImagesRow(128, 1.0, 1.0, low, high).verdict == verdict


def test_the_made_up_photographs_are_made_once_and_all_differ(tmp_path: Path) -> None:
    wanted = Folder(train=30, test=20, size=64)
    make(tmp_path / "images", wanted)
    paths = sorted(files(tmp_path / "images", "train"))
    assert (len(paths), len(list(files(tmp_path / "images", "test")))) == (30, 20)
    assert len({path.read_bytes() for path in paths}) == 30
    assert {plain_size(path.read_bytes()) for path in paths} == {(64, 64)}
    times = [path.stat().st_mtime_ns for path in paths]
    make(tmp_path / "images", wanted)
    assert [path.stat().st_mtime_ns for path in paths] == times
    make(tmp_path / "images", Folder(train=10, test=20, size=64))
    assert len(list(files(tmp_path / "images", "train"))) == 10


def test_the_first_batches_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def batches() -> Iterator[int]:
        for number in itertools.count():
            now[0] += 5.0 if number == 0 else 0.5 if number < 10 else 0.1
            yield 8

    monkeypatch.setattr(larger_data.time, "perf_counter", lambda: now[0])
    work = larger_data.Work("", 100, 64, 64, 8, 3, 2.0, "cpu", 1.0, "fp32")
    found = larger_data.timed(work, batches())
    assert found["first_batch_s"] == 5.0
    assert found["images_per_s"] == pytest.approx(80)
