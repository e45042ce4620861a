"""What `status` says of a cell: from its record, its lock, and what SLURM says about its job."""

import dataclasses
import datetime
import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from amp_sweep import record, status
from amp_sweep.lock import Lock
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record
from amp_sweep.slurm import Job

SEGMENT = {"started_at": "2026-01-01T00:00:00+00:00", "from_epoch": 0}


def found(kind: str, **changes: Any) -> Record:
    values = {"name": "m", "fingerprint": "0", "cell": {}, "overrides": [], "config": {}}
    return Record(status=kind, segments=[dict(SEGMENT)], **{**values, **changes})


def job(state: str, reason: str = "None") -> Job:
    return Job(id="12_3", raw_id="15", state=state, nodes="n1", reason=reason)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    here = RunPaths(tmp_path)
    here.job.write_text(json.dumps({"job_id": "12_3"}))
    return here


def held_by_job(paths: RunPaths) -> None:
    owner = {"host": "elsewhere", "boot_id": "other", "pid": 1, "started": 0.0, "job_id": "15"}
    paths.lock.write_text(json.dumps(owner))


@pytest.mark.parametrize("before", [record.PENDING, record.INTERRUPTED, record.FAILED])
def test_a_cell_whose_job_waits_is_pending_whatever_it_was(paths: RunPaths, before: str) -> None:
    jobs = {"12_3": job("PENDING", "Priority")}
    words = status.status_and_detail(paths, found(before), jobs)
    assert words == (record.PENDING, "job 12_3 pending on n1, Priority")


def test_a_running_cell_shows_its_job_its_node_and_the_time_left(paths: RunPaths) -> None:
    held_by_job(paths)
    paths.progress.write_text(json.dumps({"epoch": 1, "epochs": 4, "step": 5, "steps": 10}))
    kind, words = status.status_and_detail(
        paths, found(record.RUNNING), {"12_3": job("RUNNING"), "15": job("RUNNING")}
    )
    assert kind == record.RUNNING
    assert words.startswith("epoch 2/4, step 5, about ") and "left; job 12_3 on elsewhere" in words


@pytest.mark.parametrize(
    ("began", "at", "words"),
    [
        (0.0, (1, 5), "epoch 2/4, step 5, about 2 m 47 s left"),  # 3 of 8 half epochs in 100 s
        (1.0, (1, 5), "epoch 2/4, step 5, about 8 m 20 s left"),  # resumed: 1 half epoch
        (1.3, (1, 5), "epoch 2/4, step 5, about 20 m 50 s left"),  # in the midst of an epoch
        (1.5, (1, 5), "epoch 2/4, step 5"),  # right after a resume
        (1.45, (1, 5), "epoch 2/4, step 5"),  # a fiftieth of all tells no pace yet
        (None, (1, 5), "epoch 2/4, step 5, about 2 m 47 s left"),  # of an earlier version
        (0.0, (3, 10), "epoch 4/4, step 10, about 1.0 s left"),  # its evaluation
        (3.5, (4, 0), "trained: probe memory"),
    ],
)
def test_the_time_left_follows_from_what_this_segment_has_done(
    paths: RunPaths,
    monkeypatch: pytest.MonkeyPatch,
    began: float | None,
    at: tuple[int, int],
    words: str,
) -> None:
    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> "Clock":
            return cls(2026, 1, 1, 0, 1, 40, tzinfo=tz)

    monkeypatch.setattr(status.datetime, "datetime", Clock)
    values = {"epoch": at[0], "epochs": 4, "step": at[1], "steps": 10, "doing": "probe memory"}
    paths.progress.write_text(json.dumps(values if began is None else {**values, "began": began}))
    running = found(record.RUNNING)
    running.segments.insert(0, {"started_at": "2025-01-01T00:00:00+00:00"})
    with Lock(paths.lock):
        _, detail = status.status_and_detail(paths, running)
    assert detail.split("; ")[0] == words


@pytest.mark.parametrize(
    ("damage", "segments"),
    [
        ({"step": None}, [SEGMENT]),
        ({"steps": 0}, [SEGMENT]),
        ({}, []),
        ({}, [{}]),
        ({}, [{"started_at": "x"}]),
    ],
)
def test_a_position_that_cannot_be_made_out_is_a_start(
    paths: RunPaths, damage: dict[str, Any], segments: list[dict[str, Any]]
) -> None:
    values = {"epoch": 1, "epochs": 4, "step": 5, "steps": 10, **damage}
    paths.progress.write_text(json.dumps(values))
    running = found(record.RUNNING)
    running.segments = segments
    with Lock(paths.lock):
        assert status.status_and_detail(paths, running)[1].startswith("starting; ")


@pytest.mark.parametrize(
    ("kinds", "counted", "code"),
    [
        ([record.COMPLETED, record.COMPLETED], "2 completed", 0),
        ([record.COMPLETED, record.FAILED], "1 completed, 1 failed", 1),
        ([record.COMPLETED, record.RUNNING], "1 completed, 1 interrupted", 1),  # nobody holds it
        ([record.COMPLETED, None], "1 completed", 1),  # a record that cannot be read
    ],
)
def test_it_is_a_success_only_where_every_cell_is_completed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kinds: list[str | None],
    counted: str,
    code: int,
) -> None:
    for number, kind in enumerate(kinds):
        here = RunPaths(tmp_path / str(number))
        here.root.mkdir()
        here.record.write_text("{") if kind is None else record.write(here.record, found(kind))
    assert status.main([str(tmp_path)]) == code
    assert capsys.readouterr().out.splitlines()[-1] == counted


def test_a_folder_without_runs_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status.main([str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: no runs in {tmp_path}\n")


def test_a_running_record_of_a_job_that_is_over_is_interrupted(paths: RunPaths) -> None:
    held_by_job(paths)  # its heartbeat is seconds old: SLURM knows better
    jobs = {"12_3": job("NODE_FAIL"), "15": job("NODE_FAIL")}
    kind, words = status.status_and_detail(paths, found(record.RUNNING), jobs)
    assert kind == record.INTERRUPTED
    assert words == "its job is over (node_fail); the same command resumes it"


def test_where_slurm_was_not_asked_the_lock_decides(paths: RunPaths) -> None:
    with Lock(paths.lock):
        kind, words = status.status_and_detail(paths, found(record.RUNNING))
    assert kind == record.RUNNING
    assert socket.gethostname() in words
    kind, words = status.status_and_detail(paths, found(record.RUNNING))
    assert (kind, words) == (
        record.INTERRUPTED,
        "its process is gone; the same command resumes it",
    )


@pytest.mark.parametrize(
    ("done", "epochs", "words"),
    [
        (2, 10, " at epoch 3 of 10"),
        (0, 10, " at epoch 1 of 10"),
        (10, 10, " at epoch 10 of 10"),  # stopped in what follows the last one
        (2, None, ""),
        (2, "x", ""),
        (2, 0, ""),
        (2, True, ""),
    ],
)
def test_a_stopped_run_shows_the_epoch_that_it_was_in(
    paths: RunPaths, done: int, epochs: object, words: str
) -> None:
    rows = [{"epoch": number + 1} for number in range(done)]
    config = {} if epochs is None else {"epochs": epochs}
    again = "the same command resumes it"
    stopped = found(record.INTERRUPTED, config=config, epochs=rows)
    assert status.status_and_detail(paths, stopped) == (
        record.INTERRUPTED,
        f"interrupted{words}; {again}",
    )
    killed = found(record.RUNNING, config=config, epochs=rows)
    assert status.status_and_detail(paths, killed) == (
        record.INTERRUPTED,
        f"its process is gone{words}; {again}",
    )


def test_a_fifo_in_the_place_of_a_small_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    here = RunPaths(tmp_path)
    os.mkfifo(here.job)
    os.mkfifo(here.progress)
    assert status.status_and_detail(here, found(record.PENDING)) == (record.PENDING, "")


def test_a_fifo_in_the_place_of_the_lock_keeps_nobody_waiting(paths: RunPaths) -> None:
    os.mkfifo(paths.lock)
    kind, words = status.status_and_detail(paths, found(record.RUNNING))
    assert (kind, words) == (record.RUNNING, "starting; process ? on ?")  # as an unreadable one
    os.utime(paths.lock, (1000, 1000))
    assert status.status_and_detail(paths, found(record.RUNNING))[0] == record.INTERRUPTED


def test_slurm_is_asked_about_the_jobs_that_wait_and_those_that_hold_a_lock(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_by_job(paths)
    asked: list[set[str]] = []

    def ask(ids: set[str]) -> tuple[dict[str, Job], str | None]:
        asked.append(ids)
        return {}, "sacct: planted" if len(asked) > 1 else None

    monkeypatch.setattr(status.slurm, "ask", ask)
    assert status._ask_slurm([paths.record]) == ({}, None)
    jobs, silence = status._ask_slurm([paths.record])
    assert jobs == {} and silence is not None and "sacct: planted" in silence
    assert asked == [{"12_3", "15"}] * 2


def test_files_that_cannot_be_looked_at_name_no_job(tmp_path: Path) -> None:
    nowhere = RunPaths(tmp_path / ("x" * 300))  # a name that the system refuses
    assert status._ask_slurm([nowhere.record]) == (None, None)


def test_a_cell_whose_job_slurm_forgot_says_so(paths: RunPaths) -> None:
    kind, words = status.status_and_detail(paths, found(record.PENDING), {})
    assert (kind, words) == (record.PENDING, "job 12_3 which SLURM does not know")
    assert status.status_and_detail(paths, found(record.PENDING)) == (record.PENDING, "job 12_3")
    waits = status.status_and_detail(paths, found(record.PENDING), {"12_3": job("PENDING")})
    assert waits == (record.PENDING, "job 12_3 pending on n1")  # for no reason that is known
    over = dataclasses.replace(job("CANCELLED", "Priority"), nodes="")
    assert status.status_and_detail(paths, found(record.PENDING), {"12_3": over}) == (
        record.PENDING,
        "job 12_3 cancelled; it never began with the cell",
    )


@pytest.mark.parametrize("kind", [record.DIVERGED, record.INVALID])
def test_a_result_stays_one_while_its_job_waits_and_tells_its_first_line(
    paths: RunPaths, kind: str
) -> None:
    ended = found(kind, error={"message": "planted\nmore"})
    told = status.status_and_detail(paths, ended, {"12_3": job("PENDING")})
    assert told == (kind, "planted")


def test_a_completed_cell_shows_its_figures_whatever_slurm_says(paths: RunPaths) -> None:
    done = found(record.COMPLETED, metrics={"test_accuracy": 0.5, "train_time_s": 61.0})
    for jobs in (None, {}, {"12_3": job("COMPLETING")}, {"12_3": job("FAILED")}):
        assert status.status_and_detail(paths, done, jobs) == (
            record.COMPLETED,
            "accuracy 0.5000, trained 1 m 01 s",
        )


def test_cells_that_differ_in_another_setting_say_in_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for name, rate in (("a", 0.001), ("b", 0.01)):
        folder = tmp_path / name
        folder.mkdir()
        record.write(
            RunPaths(folder).record,
            found(
                record.PENDING,
                cell={"parallel": "none", "precision": "fp32", "seed": 0},
                overrides=[f"optimizer.lr={rate}"],
                config={"optimizer": {"lr": rate}},
            ),
        )
    status.main([str(tmp_path)])
    printed = capsys.readouterr().out
    assert "none x fp32, optimizer.lr=0.001 " in printed
    assert "none x fp32, optimizer.lr=0.01 " in printed
    status.main([str(tmp_path / "a")])
    assert "none x fp32 " in capsys.readouterr().out  # alone, it needs no more


def test_what_could_not_be_asked_is_said_and_the_cells_are_shown(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record.write(paths.record, found(record.FAILED, error={"message": "planted"}))
    monkeypatch.setenv("PATH", "/nowhere")
    assert status.main([str(paths.root)]) == 1
    printed = capsys.readouterr()
    assert "SLURM was not asked" in printed.err and "squeue" in printed.err
    assert "planted" in printed.out and "1 failed" in printed.out
