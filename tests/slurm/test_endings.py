"""Jobs that are stopped, killed, or left alone: the records tell it, and nothing waits for ever."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from amp_sweep import record
from amp_sweep.record import Record
from tests.conftest import CommandLine
from tests.slurm.conftest import TINY, Cluster, wait_for, with_environment

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SLURM = ("-m", "hydra/launcher=slurm")
# The digits give 29 steps of 48 images an epoch.
SLOW_CELL = ("parallel=ddp", "epochs=3", *TINY)
SPARE = ("hydra.launcher.partition=spare",)


def only_record(command: CommandLine, name: str = "matrix") -> Record:
    (found,) = command.records(name).values()
    return found


def job_id(command: CommandLine) -> str:
    return str(only_record(command).environment["slurm_job_ids"][-1])


def is_training(command: CommandLine) -> bool:
    found = list(command.records().values())
    under_way = bool(list(command.folder.glob("outputs/*/*/progress.json")))
    return bool(found) and found[0].status == record.RUNNING and under_way


def epochs_done(command: CommandLine) -> int:
    found = list(command.records().values())
    return len(found[0].epochs) if found else 0


def weights(command: CommandLine, name: str) -> dict[str, torch.Tensor]:
    (path,) = command.folder.glob(f"outputs/{name}/*/checkpoints/final.pt")
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["weights"]
    return state


def assert_equal_to_uninterrupted(command: CommandLine, *overrides: str) -> None:
    run = with_environment(command, SLURM_CPUS_PER_TASK="2").train(*overrides, "name=whole")
    assert run.code == 0, run.text
    whole, resumed = weights(command, "whole"), weights(command, "matrix")
    assert whole.keys() == resumed.keys()
    assert all(torch.equal(whole[key], resumed[key]) for key in whole)


def detached(command: CommandLine, *overrides: str, slow: str = "0.1") -> str:
    """Submit without waiting; what was printed."""
    run = with_environment(command, SLOW=slow).train(*SLURM, "launch.wait=false", *overrides)
    assert run.code == 0, run.text
    return run.out


def test_a_detached_sweep_is_followed_by_status_cancelled_and_resumed(
    cluster: Cluster, submitting: CommandLine
) -> None:
    out = detached(submitting, *SLOW_CELL, slow="0.4")
    assert "python -m amp_sweep.status" in out and "python -P -m analysis" in out
    (cancel,) = (line.split(":")[1].split() for line in out.splitlines() if "to cancel" in line)
    wait_for(lambda: epochs_done(submitting) >= 1)
    status = submitting("amp_sweep.status", "outputs/matrix")
    assert status.code == 1
    assert "running" in status.out and "epoch 2/3" in status.out and "left" in status.out
    assert f"job {cancel[1]}" in status.out and " on n" in status.out
    # The same command meanwhile submits no second job for the cell.
    assert "already submitted" in detached(submitting, *SLOW_CELL)

    cluster(*cancel)
    wait_for(lambda: only_record(submitting).status == record.INTERRUPTED, 15)
    wait_for(lambda: cluster.states(cancel[1]) == ["CANCELLED"], 20)
    assert list(submitting.folder.rglob("last.pt"))
    assert "interrupted" in submitting("amp_sweep.status", "outputs/matrix").out

    again = submitting.train(*SLURM, *SLOW_CELL)
    assert again.code == 0, again.text
    done = only_record(submitting)
    assert [segment["from_epoch"] for segment in done.segments] == [0, 1]
    assert len(done.environment["slurm_job_ids"]) == 2
    assert_equal_to_uninterrupted(submitting, *SLOW_CELL)


def test_ctrl_c_while_waiting_leaves_the_jobs_and_says_how_to_cancel_them(
    cluster: Cluster, submitting: CommandLine
) -> None:
    process = with_environment(submitting, SLOW="0.2").popen(*SLURM, *SLOW_CELL)
    wait_for(lambda: is_training(submitting))
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert process.returncode == 130, out
    job = cluster("squeue", "-h", "-o", "%i", "-j", job_id(submitting)).strip()
    assert "go on" in out and f"scancel {job}" in out
    assert cluster.states(job) == ["RUNNING"]
    assert only_record(submitting).status == record.RUNNING
    cluster("scancel", job)


def test_a_killed_job_is_a_failed_cell_and_the_sweep_ends(
    cluster: Cluster, submitting: CommandLine
) -> None:
    process = with_environment(submitting, SLOW="0.2").popen(*SLURM, *SLOW_CELL)
    wait_for(lambda: is_training(submitting))
    victims = processes_of(job_id(submitting))
    assert len(victims) >= 3
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 1, out
    failed = only_record(submitting)
    assert failed.status == record.FAILED and failed.error is not None
    assert "ended in the middle of its run" in failed.error["message"]
    assert "FAILED" in out and "0 of 1 cell completed" in out


def processes_of(job: str, name: str = "python") -> list[int]:
    """Processes of a job by name: they have its id in their environment, or in their title."""
    found = []
    for process in psutil.process_iter():
        try:
            in_title = f"[{job}." in " ".join(process.cmdline())
            its_own = process.environ().get("SLURM_JOB_ID") == job or in_title
            if its_own and name in process.name():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_a_job_that_never_begins_with_its_cell_is_a_failed_cell(submitting: CommandLine) -> None:
    run = submitting.train(*SLURM, *TINY, "hydra.launcher.setup=[exit 3]")
    assert run.code == 1, run.text
    failed = only_record(submitting)
    assert failed.status == record.FAILED and failed.error is not None
    assert "ended before it began" in failed.error["message"]


def test_what_slurm_refuses_is_said_in_its_words_and_nothing_waits(
    submitting: CommandLine,
) -> None:
    run = submitting.train(*SLURM, *TINY, "hydra.launcher.partition=nowhere")
    assert run.code == 1
    assert "invalid partition specified: nowhere" in run.err
    assert "Traceback" not in run.text


def test_several_tasks_a_node_are_refused_with_the_setting_to_change(
    submitting: CommandLine,
) -> None:
    run = submitting.train(*SLURM, *TINY, "hydra.launcher.tasks_per_node=2")
    assert run.code == 1
    assert "hydra.launcher.tasks_per_node=2" in run.err and "leave it at 1" in run.err
    assert submitting.records() == {}


def test_a_preempted_job_saves_requeues_and_ends_with_the_same_weights(
    cluster: Cluster, submitting: CommandLine
) -> None:
    detached(submitting, *SLOW_CELL, *SPARE, "hydra.launcher.timeout_min=60")
    wait_for(lambda: epochs_done(submitting) >= 1)
    job = job_id(submitting)
    urgent = subprocess.Popen(
        ["srun", "-p", "urgent", "--exclusive", "sleep", "1"], env=cluster.environment
    )
    assert urgent.wait(60) == 0
    wait_for(lambda: only_record(submitting).status == record.COMPLETED)
    done = only_record(submitting)
    assert [segment["from_epoch"] for segment in done.segments] == [0, 1]
    assert {segment["slurm_job_id"] for segment in done.segments} == {job}
    assert_equal_to_uninterrupted(submitting, *SLOW_CELL)


def test_a_node_that_stops_in_mid_run_gives_its_cell_back_to_the_queue(
    cluster: Cluster, submitting: CommandLine
) -> None:
    saving = ("checkpoint.every_steps=5",)
    process = with_environment(submitting, SLOW="0.1").popen(*SLURM, *SLOW_CELL, *SPARE, *saving)
    wait_for(lambda: epochs_done(submitting) >= 1)
    job = job_id(submitting)
    cluster.script("stop-node", "n3")
    for pid in [*processes_of(job, "slurmstepd"), *processes_of(job)]:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "down" in cluster("sinfo", "-h", "-n", "n3", "-o", "%T"), 40)
    cluster.script("start-node", "n3")
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 0, out
    done = only_record(submitting)
    assert done.status == record.COMPLETED
    assert len(done.segments) == 2 and done.segments[1]["from_epoch"] >= 1
    assert_equal_to_uninterrupted(submitting, *SLOW_CELL)


@pytest.fixture(scope="module", autouse=True)
def timing_out(
    tmp_path_factory: pytest.TempPathFactory, make_submitting: Callable[[Path], CommandLine]
) -> list[CommandLine]:
    """Two cells that need more than their minute, beside the other tests: it takes minutes."""
    commands = []
    for requeues in (2, 0):
        command = make_submitting(tmp_path_factory.mktemp("limit"))
        limits = (
            "hydra.launcher.timeout_min=1",
            "hydra.launcher.signal_delay_s=30",
            f"hydra.launcher.max_num_timeout={requeues}",
        )
        detached(command, *SLOW_CELL, *limits, slow="0.8")
        commands.append(command)
    return commands


def test_at_its_time_limit_a_job_saves_requeues_and_ends_with_the_same_weights(
    timing_out: list[CommandLine],
) -> None:
    command, _ = timing_out
    wait_for(lambda: only_record(command).status == record.COMPLETED, 150)
    done = only_record(command)
    assert len(done.segments) >= 2
    assert len({segment["slurm_job_id"] for segment in done.segments}) == 1
    assert done.environment["slurm_job_ids"] == [done.segments[0]["slurm_job_id"]]
    table = command("analysis", "outputs/matrix")
    assert "stitched" in table.out
    assert_equal_to_uninterrupted(command, *SLOW_CELL)


def test_at_its_time_limit_without_a_requeue_left_the_cell_is_a_timeout_and_resumes(
    timing_out: list[CommandLine],
) -> None:
    _, command = timing_out
    wait_for(lambda: only_record(command).status == record.TIMEOUT, 150)
    ended = only_record(command)
    assert ended.error is not None and "hydra.launcher.timeout_min" in ended.error["message"]
    again = command.train(*SLURM, *SLOW_CELL)
    assert again.code == 0, again.text
    assert [segment["from_epoch"] > 0 for segment in only_record(command).segments] == [False, True]


def seen(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_each_rank_sees_the_gpus_that_slurm_gave_its_job(
    cluster: Cluster, submitting: CommandLine
) -> None:
    folder = submitting.folder / "seen"
    folder.mkdir()
    # Two jobs of one GPU share a node, beside each other; then one job of two.
    one = ("parallel=none", "seed=0,1", "epochs=1", *TINY, *SPARE, "hydra.launcher.gpus_per_node=1")
    run = with_environment(submitting, SEEN=str(folder), SLOW="0.3").train(*SLURM, *one)
    assert run.code == 0, run.text
    assert sorted(seen(folder).values()) == ["0", "1"]
    for path in folder.iterdir():
        path.unlink()
    two = ("parallel=ddp", "epochs=1", *TINY, *SPARE, "hydra.launcher.gpus_per_node=2")
    run = with_environment(submitting, SEEN=str(folder)).train(*SLURM, *two)
    assert run.code == 0, run.text
    assert list(seen(folder).values()) == ["0,1", "0,1"]
