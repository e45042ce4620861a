"""The benchmarks run on a CPU, small, and say what they did."""

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from amp_sweep.data.jpeg import plain_size
from benchmarks import picture
from benchmarks.growth import sweeps
from benchmarks.growth.images import ImagesRow
from benchmarks.growth.page import Line, line
from benchmarks.larger_data import image_folder, inputs
from benchmarks.larger_data.image_folder import Folder, files, make
from benchmarks.larger_data.work import Work
from benchmarks.shared.provenance import commit
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
    # The sweep process holds nothing of the cells that are done. Single readings may be off: a
    # page more or less, at whatever moment of the work between two cells they were taken.
    after_first, at_last = large["sweep_mib"][2:10], large["sweep_mib"][-8:]
    assert statistics.median(at_last) - statistics.median(after_first) < 2
    page = (tmp_path / "growth.md").read_text()
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


def everything(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    "there",
    [
        {"holiday.jpg": b"mine"},
        {"train/class0/0000001.jpg": b"mine"},
        {"made.json": b"mine", "train/class0/0000001.jpg": b"mine"},
        {"made.json": b'{"train": 4, "test": 4, "size": 64}', "train/a.jpg": b"mine"},
        {"made.json": b"[1]"},
    ],
)
def test_a_folder_that_the_benchmark_did_not_make_is_refused_and_stays(
    tmp_path: Path, there: dict[str, bytes]
) -> None:
    for name, content in there.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(content)
    with pytest.raises(SystemExit, match="images: there is something that this benchmark did not"):
        make(tmp_path / "images", Folder(train=4, test=4, size=64))
    assert everything(tmp_path / "images") == there


def test_a_file_in_the_place_of_the_folder_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(b"mine")
    with pytest.raises(SystemExit, match="did not make"):
        make(tmp_path / "images", Folder(train=4, test=4, size=64))
    assert (tmp_path / "images").read_bytes() == b"mine"


def test_images_of_a_person_among_made_up_ones_stay(tmp_path: Path) -> None:
    root = tmp_path / "images"
    make(root, Folder(train=4, test=4, size=64))
    mine = {"note.txt", "train/class0/mine.jpg", "test/class3/deeper/0000001.jpg"}
    for name in mine:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"mine")
    with pytest.raises(SystemExit, match=r"train/class0: .* did not make"):
        make(root, Folder(train=5, test=4, size=64))
    assert mine <= everything(root).keys()
    (root / "train/class0/mine.jpg").unlink()
    (root / "test/class3/deeper/0000001.jpg").unlink()
    (root / "test/class3/deeper").rmdir()
    make(root, Folder(train=5, test=4, size=64))
    assert len(list(files(root, "train"))) == 5
    assert (root / "note.txt").read_bytes() == b"mine"


def test_made_up_photographs_that_were_cut_short_are_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, wanted = tmp_path / "images", Folder(train=4, test=4, size=64)
    make(root, wanted)
    right = everything(root)

    def cut_short(*_: object) -> None:
        raise KeyboardInterrupt

    # Others are wanted, and it ends before the first image; then as it was.
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(image_folder, "ProcessPoolExecutor", cut_short)
        make(root, Folder(train=6, test=4, size=64))
    make(root, wanted)
    assert everything(root) == right
    # It ends while it deletes.
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(image_folder.Path, "unlink", cut_short)
        make(root, Folder(train=6, test=4, size=64))
    (root / "train/class1/0000001.jpg").write_bytes(b"half")
    make(root, wanted)
    assert everything(root) == right


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_the_commit_is_that_of_the_code_from_whatever_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            [*command, *arguments], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "other")
    here = commit()
    monkeypatch.chdir(tmp_path)
    assert commit() == here != git("rev-parse", "--short", "HEAD")
    monkeypatch.setenv("PATH", "")
    assert commit() == "unknown"


def test_a_cell_whose_end_could_not_be_looked_at_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sweeps, "POLL_S", 0.001)
    a, b, c = (Path(name) for name in "abc")
    over = [set(), {a}, {a}, {a, b}, {a, b, c}]
    used = [
        None,
        psutil.NoSuchProcess(1),
        (1.0, 2.0, 3.0),
        (4.0, 5.0, 6.0),
        psutil.NoSuchProcess(1),
    ]
    looks = iter(range(5))
    now = -1

    def alive() -> bool:
        nonlocal now
        now = next(looks, -1)
        return now >= 0

    def use() -> Any:
        found = used[now]
        if isinstance(found, Exception):
            raise found
        return found

    ends, seen = sweeps.looked_at(alive, lambda: over[now], use, 0.0)
    assert seen == [(1.0, 2.0, 3.0), (4.0, 5.0, 6.0)]
    assert len(ends) == 2 and ends == sorted(ends)


def test_a_sweep_that_could_never_be_looked_at_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = {Path(str(number)) for number in range(9)}
    real = subprocess.Popen

    def sleeper(_: object, **options: Any) -> subprocess.Popen[bytes]:
        return real([sys.executable, "-c", "import time; time.sleep(0.3)"], **options)

    def gone(_: object) -> None:
        raise psutil.NoSuchProcess(1)

    monkeypatch.setattr(sweeps, "POLL_S", 0.01)
    monkeypatch.setattr(sweeps, "_over", lambda _: cells)
    monkeypatch.setattr(sweeps, "_mib", gone)
    monkeypatch.setattr(sweeps.subprocess, "Popen", sleeper)
    with pytest.raises(SystemExit, match="could not be read at the end of 9 cells"):
        sweeps.watch_sweep(tmp_path, 1, argparse.Namespace(device="cpu"))


def test_the_first_batches_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def batches() -> Iterator[int]:
        for number in itertools.count():
            now[0] += 5.0 if number == 0 else 0.5 if number < 10 else 0.1
            yield 8

    monkeypatch.setattr(inputs.time, "perf_counter", lambda: now[0])
    work = Work("", 100, 64, 64, 8, 3, 2.0, "cpu", 1.0, "fp32")
    found = inputs.timed(work, batches())
    assert found["first_batch_s"] == 5.0
    assert found["images_per_s"] == pytest.approx(80)


def test_the_picture_shows_each_contender_once_the_slowest_first(tmp_path: Path) -> None:
    def row(contender: str, *values: float, precision: str = "scaler") -> dict[str, object]:
        work = {"precision": precision, "batch": 64, "gpus": 2}
        return {
            "contender": contender,
            "work": work,
            "results": [{"images_per_s": v} for v in values],
        }

    runs = {
        "one": [row("ours", 10.0), row("tuned", 30.0), row("bare", 99.0, precision="fp32")],
        "two": [row("ours", 70.0, 20.0, 21.0), row("ours_ddp_fast", 40.0)],
        "absent": [{**row("article"), "results": [{"absent": "no images"}]}],
    }
    shown = picture.bars(runs, "scaler", 64)
    assert [(bar.contender, bar.images_per_s) for bar in shown] == [
        ("ours", 21.0), ("tuned", 30.0), ("ours_ddp_fast", 40.0),
    ]  # fmt: skip
    assert "on 2 GPUs" in shown[-1].label
    results = tmp_path / "results.json"
    results.write_text(json.dumps(runs["one"]))
    assert picture.main([str(results), "--out", str(tmp_path / "made")]) == 0
    with Image.open(tmp_path / "made" / "speed.png") as made:
        assert made.width == 1080 and np.asarray(made.convert("L")).std() > 10
    assert (tmp_path / "made" / "speed.svg").read_text().count("<path") > 10
    with pytest.raises(SystemExit):
        picture.main([str(results), "--precision", "bf16", "--out", str(tmp_path)])
