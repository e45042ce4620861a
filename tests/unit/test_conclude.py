"""A run whose launcher was killed: concluded where it was trained, and its ranks are gone first."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from amp_sweep import record
from amp_sweep.launch import Node, conclude_if_trained, leftover, nodes
from amp_sweep.launch.judge import CUT_SHORT
from amp_sweep.launch.watch import read_endings
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record

# Half a minute of the first of January 2026.
BEGUN, ENDED = "2026-01-01T00:00:00+00:00", 1767225630.0

# No process has this number, which is Linux's largest and one more.
NOBODY = 2**22 + 1

WORDS = "the process that watched the ranks was killed"
NOTE = f"{CUT_SHORT}: {WORDS}; figures that need them are missing"

# Like rank 0 after its training: has its log open (unless argv[4] is empty), writes its ending
# with the age argv[3] and, when argv[2] s are over, a record that it has read at its start.
RANK = """
import json, os, sys, time
from pathlib import Path
from amp_sweep import record
from amp_sweep.paths import RunPaths
paths, stays_s, age_s = RunPaths(Path(sys.argv[1])), float(sys.argv[2]), float(sys.argv[3])
log = open(paths.log(0), "a") if sys.argv[4] else None
values = {"rank": 0, "pid": os.getpid(), "time": time.time() - age_s, "kind": "running"}
found = record.read(paths.record)
record.write_atomic(paths.ending(0), json.dumps({**values, "trained": True}))
print("ready", flush=True)
time.sleep(stays_s)
found.note("the last word of rank 0")
record.write(paths.record, found)
"""

StartRank = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths(tmp_path)
    found.checkpoints.mkdir()
    found.last_checkpoint.touch()
    write_ending(found)
    return found


@pytest.fixture
def start_rank(paths: RunPaths) -> Iterator[StartRank]:
    children: list[subprocess.Popen[str]] = []

    def start(stays_s: float, age_s: float = 0.0, has_log: bool = True) -> "subprocess.Popen[str]":
        arguments = [str(paths.root), str(stays_s), str(age_s), "yes" if has_log else ""]
        child = subprocess.Popen(
            [sys.executable, "-c", RANK, *arguments], stdout=subprocess.PIPE, text=True
        )
        children.append(child)
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def running(paths: RunPaths, **segment: Any) -> Record:
    """The record that a killed launcher leaves, also written."""
    first = {"started_at": BEGUN, "ended_at": None, "hostname": socket.gethostname()}
    found = Record(
        name="m",
        fingerprint="0",
        status=record.RUNNING,
        cell={},
        overrides=[],
        config={},
        effective={"native_bf16": None},
        metrics={"train_time_s": 20.0, "test_accuracy": 0.5, "images_per_s": None},
        epochs=[{"epoch": 1}],
        segments=[{**first, **segment}],
    )
    record.write(paths.record, found)
    return found


def write_ending(paths: RunPaths, rank: int = 0, **changes: Any) -> None:
    values = {"rank": rank, "pid": NOBODY, "time": ENDED, "kind": record.RUNNING, "trained": True}
    paths.ending(rank).write_text(json.dumps({**values, **changes}))


def test_a_trained_run_is_completed_at_the_last_word_of_its_ranks(paths: RunPaths) -> None:
    write_ending(paths, 1, time=ENDED - 10)
    paths.progress.write_text("{}")
    done = conclude_if_trained(paths, running(paths))
    assert done == record.read(paths.record)
    assert done is not None and (done.status, done.error) == (record.COMPLETED, None)
    assert done.notes == [NOTE]
    (segment,) = done.segments
    assert segment["ended_at"] == "2026-01-01T00:00:30+00:00"
    assert (segment["wall_s"], segment["to_epoch"]) == (30, 1)
    assert done.metrics["wall_time_s"] == 30
    left = [path.name for path in paths.root.iterdir() if not path.name.startswith(".")]
    assert sorted(left) == ["checkpoints", "record.json"]
    assert not list(paths.checkpoints.iterdir())


def test_the_words_of_who_noticed_are_the_note(paths: RunPaths) -> None:
    done = conclude_if_trained(paths, running(paths), "job 7 ended: FAILED")
    assert done is not None and done.notes == [NOTE.replace(WORDS, "job 7 ended: FAILED")]


@pytest.mark.parametrize("status", sorted({*record.STATUSES} - {record.RUNNING}))
def test_a_record_that_tells_its_ending_is_left_as_it_is(paths: RunPaths, status: str) -> None:
    found = running(paths)
    found.status = status
    record.write(paths.record, found)
    before = paths.record.read_bytes()
    assert conclude_if_trained(paths, found) is None
    assert paths.record.read_bytes() == before and paths.ending(0).exists()


def test_a_run_that_another_process_concluded_in_this_moment_stays_concluded(
    paths: RunPaths,
) -> None:
    found = running(paths)
    first = conclude_if_trained(paths, found)
    assert conclude_if_trained(paths, found) == first is not None


def untrained(paths: RunPaths) -> None:
    write_ending(paths, trained=False)


def no_endings(paths: RunPaths) -> None:
    paths.ending(0).unlink()


def another_result(paths: RunPaths) -> None:
    error = {"type": "Diverged", "message": "loss is nan", "traceback": "Traceback ..."}
    write_ending(paths, kind=record.DIVERGED, error=error, trained=False)


@pytest.mark.parametrize("left", [untrained, no_endings, another_result])
def test_what_was_not_trained_is_left_to_be_resumed(
    paths: RunPaths, left: Callable[[RunPaths], None]
) -> None:
    left(paths)
    found = running(paths)
    before = paths.record.read_bytes()
    assert conclude_if_trained(paths, found) is None
    assert paths.record.read_bytes() == before and paths.last_checkpoint.exists()


@pytest.mark.parametrize(
    "segment", [{}, {"started_at": None}, {"started_at": 5}, {"started_at": "soon"}]
)
def test_a_damaged_segment_is_left_to_be_resumed(paths: RunPaths, segment: dict[str, Any]) -> None:
    found = running(paths)
    found.segments = [segment]
    record.write(paths.record, found)
    assert conclude_if_trained(paths, found) is None
    found.segments = []
    record.write(paths.record, found)
    assert conclude_if_trained(paths, found) is None
    assert record.read(paths.record).status == record.RUNNING


@pytest.mark.parametrize("name", ["train_time_s", "test_accuracy", "images_per_s"])
def test_a_record_without_the_figures_of_its_training_is_left_to_be_resumed(
    paths: RunPaths, name: str
) -> None:
    found = running(paths)
    found.metrics[name] = "x"
    record.write(paths.record, found)
    assert conclude_if_trained(paths, found) is None


def test_a_record_that_nobody_can_read_any_more_is_left(paths: RunPaths) -> None:
    found = running(paths)
    paths.record.write_text("{")
    assert conclude_if_trained(paths, found) is None


def test_damaged_durations_of_earlier_segments_count_nothing(paths: RunPaths) -> None:
    found = running(paths)
    wall = ({"wall_s": "x"}, {"wall_s": None}, {"wall_s": 10**400}, {"wall_s": 2.5}, {})
    found.segments = [*map(dict, wall), *found.segments]
    record.write(paths.record, found)
    done = conclude_if_trained(paths, found)
    assert done is not None and done.metrics["wall_time_s"] == 32.5


ERROR = {"type": "E", "message": "m", "traceback": None}
MISSING = object()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("rank", value) for value in (MISSING, None, "0", True, -1, 0.0)),
        # A signal to one of these would reach a whole group, or everybody.
        *(("pid", value) for value in (MISSING, None, "7", 0, -1, 1, 2**31, True)),
        *(("time", value) for value in (MISSING, None, "x", float("nan"), 1e300, 10**400, -1)),
        *(("kind", value) for value in (MISSING, None, [], "trained")),
        *(("error", value) for value in (None, "x", {}, {**ERROR, "message": None})),
        ("error", {"type": "E", "message": "m"}),
    ],
)
def test_a_damaged_ending_counts_as_none(paths: RunPaths, name: str, value: Any) -> None:
    write_ending(paths, 1, error=ERROR)
    assert set(read_endings(paths)) == {0, 1}
    values = json.loads(paths.ending(1).read_text())
    values[name] = value
    if value is MISSING:
        del values[name]
    paths.ending(1).write_text(json.dumps(values))
    assert set(read_endings(paths)) == {0}
    done = conclude_if_trained(paths, running(paths))
    assert done is not None and done.notes == [NOTE]


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_ending_at_all_counts_as_none(paths: RunPaths, content: bytes) -> None:
    paths.ending(0).write_bytes(content)
    assert read_endings(paths) == {}
    assert conclude_if_trained(paths, running(paths)) is None


def test_a_fifo_in_the_place_of_an_ending_keeps_nobody_waiting(paths: RunPaths) -> None:
    os.mkfifo(paths.ending(1))
    assert set(read_endings(paths)) == {0}
    done = conclude_if_trained(paths, running(paths))
    assert done is not None and not paths.ending(1).exists()


def test_a_fifo_in_the_place_of_an_announcement_keeps_nobody_waiting(paths: RunPaths) -> None:
    os.mkfifo(paths.nodes)
    assert nodes.announced(paths, Node(1, 2)) is None


@pytest.mark.parametrize("native", [True, False, None])
def test_whether_bf16_was_native_is_told_by_the_machine_that_trained(
    paths: RunPaths, native: bool | None
) -> None:
    done = conclude_if_trained(paths, running(paths, hostname="elsewhere", native_bf16=native))
    assert done is not None and done.effective["native_bf16"] is native


def test_the_last_word_of_rank_0_is_waited_for(paths: RunPaths, start_rank: StartRank) -> None:
    found = running(paths)
    rank = start_rank(1.0)
    done = conclude_if_trained(paths, found)
    assert rank.wait(timeout=10) == 0  # by itself
    assert done is not None and done.notes == ["the last word of rank 0", NOTE]
    assert record.read(paths.record) == done and done.status == record.COMPLETED


def test_a_rank_that_does_not_go_is_killed(
    paths: RunPaths, start_rank: StartRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftover, "WAIT_S", 0.3)
    found = running(paths)
    rank = start_rank(600)
    done = conclude_if_trained(paths, found)
    assert rank.wait(timeout=10) == -9
    assert done is not None and done.notes == [NOTE]


@pytest.mark.parametrize(
    ("age_s", "has_log", "host"),
    [
        (100.0, True, "here"),  # it began after the rank's last word: somebody reads the log
        (0.0, False, "here"),
        (0.0, True, "elsewhere"),
    ],
)
def test_another_process_with_the_number_of_a_rank_is_left_alone(
    paths: RunPaths,
    start_rank: StartRank,
    monkeypatch: pytest.MonkeyPatch,
    age_s: float,
    has_log: bool,
    host: str,
) -> None:
    monkeypatch.setattr(leftover, "WAIT_S", 5.0)
    found = running(paths, hostname=socket.gethostname() if host == "here" else host)
    other = start_rank(600, age_s, has_log)
    began = time.monotonic()
    done = conclude_if_trained(paths, found)
    assert done is not None and done.status == record.COMPLETED
    assert time.monotonic() - began < 4
    time.sleep(0.2)
    assert other.poll() is None and psutil.pid_exists(other.pid)
