"""Jobs that are stopped, killed, or left alone: the records tell it, and nothing waits for ever."""

import os
import re
import signal
from pathlib import Path

import pytest

from amp_sweep import record
from tests.conftest import CommandLine, wait_for
from tests.slurm.conftest import (
    SLOW_CELL,
    SLURM,
    TINIEST,
    TINY,
    Cluster,
    assert_same_weights,
    detached,
    epochs_done,
    is_training,
    job_id,
    processes_of,
)

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ONE_NODE = ("+hydra.launcher.additional_parameters.nodelist=n2",)


def test_a_detached_sweep_is_followed_by_status_cancelled_and_resumed(
    cluster: Cluster, submitting: CommandLine, uninterrupted: CommandLine
) -> None:
    out = detached(submitting, *SLOW_CELL, slow="0.3")
    assert "python -m amp_sweep.status" in out and "python -P -m analysis" in out
    (cancel,) = (line.split(":")[1].split() for line in out.splitlines() if "to cancel" in line)
    wait_for(lambda: epochs_done(submitting) >= 1)
    status = submitting("amp_sweep.status", "outputs/matrix")
    assert status.code == 1
    assert "running" in status.out and re.search(r"epoch [12]/3, .* left", status.out)
    assert f"job {cancel[1]}" in status.out and " on n" in status.out
    # The same command meanwhile submits no second job for the cell.
    assert "already submitted" in detached(submitting, *SLOW_CELL)

    cluster(*cancel)
    wait_for(lambda: submitting.only_record().status == record.INTERRUPTED, 15)
    wait_for(lambda: cluster.states(cancel[1]) == ["CANCELLED"], 20)
    assert list(submitting.folder.rglob("last.pt"))
    assert "interrupted" in submitting("amp_sweep.status", "outputs/matrix").out

    again = submitting.train(*SLURM, *SLOW_CELL)
    assert again.code == 0, again.text
    done = submitting.only_record()
    assert [segment["from_epoch"] > 0 for segment in done.segments] == [False, True]
    assert len(done.environment["slurm_job_ids"]) == 2
    assert_same_weights(submitting, uninterrupted)


def test_ctrl_c_while_waiting_leaves_the_jobs_and_says_how_to_cancel_them(
    cluster: Cluster, submitting: CommandLine
) -> None:
    process = submitting.with_environment(SLOW="0.2").popen(*SLURM, *SLOW_CELL)
    wait_for(lambda: is_training(submitting))
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130, out
    job = cluster("squeue", "-h", "-o", "%i", "-j", job_id(submitting)).strip()
    assert "go on" in out and f"scancel {job}" in out
    assert cluster.states(job) == ["RUNNING"]
    assert submitting.only_record().status == record.RUNNING
    cluster("scancel", job)


def test_a_killed_job_is_a_failed_cell_and_the_sweep_ends(
    cluster: Cluster, submitting: CommandLine
) -> None:
    process = submitting.with_environment(SLOW="0.2").popen(*SLURM, *SLOW_CELL)
    wait_for(lambda: is_training(submitting))
    victims = processes_of(job_id(submitting))
    assert len(victims) >= 3
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1, out
    failed = submitting.only_record()
    assert failed.status == record.FAILED and failed.error is not None
    assert "ended in the middle of its run" in failed.error["message"]
    assert "FAILED" in out and "0 of 1 cell completed" in out


def test_a_job_that_never_begins_with_its_cell_is_a_failed_cell(submitting: CommandLine) -> None:
    run = submitting.train(*SLURM, *TINY, "hydra.launcher.setup=[exit 3]")
    assert run.code == 1, run.text
    failed = submitting.only_record()
    assert failed.status == record.FAILED and failed.error is not None
    assert "ended before it began" in failed.error["message"]


def test_a_job_that_refuses_its_cell_says_why_in_the_record(submitting: CommandLine) -> None:
    run = submitting.train(*SLURM, *TINIEST, "data.batch_size=98")
    assert run.code == 1, run.text
    failed = submitting.only_record()
    why = "data.batch_size: a global batch of 98 exceeds the 96 training images"
    assert failed.status == record.FAILED and failed.error is not None
    assert (failed.error["message"], failed.error.get("traceback")) == (why, None)
    assert why in " ".join(run.text.split())


def test_what_slurm_refuses_is_said_in_its_words_and_nothing_waits(
    submitting: CommandLine,
) -> None:
    run = submitting.train(*SLURM, *TINY, "hydra.launcher.partition=nowhere")
    assert run.code == 1
    assert run.text.count("invalid partition specified: nowhere") == 1
    assert "Traceback" not in run.text


def test_several_tasks_a_node_are_refused_with_the_setting_to_change(
    submitting: CommandLine,
) -> None:
    run = submitting.train(*SLURM, *TINY, "hydra.launcher.tasks_per_node=2")
    assert run.code == 1
    assert "hydra.launcher.tasks_per_node=2" in run.err and "leave it at 1" in run.err
    assert submitting.records() == {}


def seen(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_each_rank_sees_the_gpus_that_slurm_gave_its_job(
    cluster: Cluster, submitting: CommandLine
) -> None:
    folder = submitting.folder / "seen"
    folder.mkdir()
    # Two jobs of one GPU share a node, beside each other; then one job of two.
    one = (
        "parallel=none",
        "seed=0,1",
        "epochs=1",
        *TINY,
        *ONE_NODE,
        "hydra.launcher.gpus_per_node=1",
    )
    run = submitting.with_environment(SEEN=str(folder), SLOW="0.3").train(*SLURM, *one)
    assert run.code == 0, run.text
    assert sorted(seen(folder).values()) == ["0", "1"]
    for path in folder.iterdir():
        path.unlink()
    two = ("parallel=ddp", "epochs=1", *TINY, *ONE_NODE, "hydra.launcher.gpus_per_node=2")
    run = submitting.with_environment(SEEN=str(folder)).train(*SLURM, *two)
    assert run.code == 0, run.text
    assert list(seen(folder).values()) == ["0,1", "0,1"]
