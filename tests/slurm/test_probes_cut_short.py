"""Jobs that end when the training is over: the cell is completed."""

import os
import signal
import subprocess

import pytest

from amp_sweep import record
from tests.conftest import CommandLine, wait_for
from tests.slurm.conftest import PROBED, SLURM, Cluster, job_id, processes_of

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

CELL = ("parallel=ddp", "epochs=1", *PROBED)
AFTER_THE_TRAINING = 29 + 1  # calls of the network on the digits


def in_the_probes(command: CommandLine, rank: int) -> "subprocess.Popen[str]":
    """A sweep of one cell as a job, which hangs in its first probe on one rank."""
    process = command.with_environment(FAULT=f"hangs:{rank}:{AFTER_THE_TRAINING}").popen(
        *SLURM, *CELL
    )
    files = "outputs/matrix/*/progress.json"
    wait_for(lambda: any('"probe memory"' in p.read_text() for p in command.folder.glob(files)))
    return process


def kill_the_job(job: str) -> None:
    for pid in processes_of(job):
        os.kill(pid, signal.SIGKILL)


def test_a_job_that_is_killed_in_the_probes_has_a_completed_cell(
    cluster: Cluster, submitting: CommandLine
) -> None:
    process = in_the_probes(submitting, 1)
    kill_the_job(job_id(submitting))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    found = submitting.only_record()
    assert found.status == record.COMPLETED and len(found.segments) == 1
    words = ("probes after the training were cut short", "ended: FAILED on n")
    assert any(all(each in note for each in words) for note in found.notes)
    assert not list(submitting.folder.rglob("*.ending.json"))
    again = submitting.train(*SLURM, *CELL)
    assert again.code == 0 and "skipped, completed before" in again.out


def test_a_job_that_is_told_to_stop_in_the_probes_does_not_go_back_into_the_queue(
    cluster: Cluster, submitting: CommandLine
) -> None:
    process = in_the_probes(submitting, 0)
    job = job_id(submitting)
    for pid in processes_of(job):
        os.kill(pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert submitting.only_record().status == record.COMPLETED, out
    wait_for(lambda: cluster.states(job) not in (["RUNNING"], ["COMPLETING"]), 30)
    shown = cluster("scontrol", "show", "job", job)
    assert "Restarts=0" in shown, shown
