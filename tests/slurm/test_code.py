"""The code that was submitted is the code that runs, or the record says that it was not."""

import json

import pytest

from amp_sweep import record
from tests.conftest import CommandLine, wait_for
from tests.slurm.conftest import SLURM, TINIEST, Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def hidden_units(command: CommandLine, name: str) -> int:
    return int(command.final_weights(name)["body.2.bias"].shape[0])


def test_code_edited_before_the_start_is_noted_and_a_snapshot_runs_as_submitted(
    cluster: Cluster, submitting: CommandLine
) -> None:
    held = ("launch.wait=false", "+hydra.launcher.additional_parameters.hold=true")
    for name, more in (("live", ()), ("copy", ("launch.snapshot=true",))):
        run = submitting.train(*SLURM, *TINIEST, *held, f"name={name}", *more)
        assert run.code == 0, run.text
    faults = submitting.folder / "faults.py"
    faults.write_text(faults.read_text().replace("64", "16"))
    files = submitting.folder.glob("outputs/*/*/job.json")
    jobs = [json.loads(path.read_text())["job_id"] for path in files]
    for job in jobs:
        cluster("scontrol", "release", job)
    for name in ("live", "copy"):
        wait_for(
            lambda name=name: (
                [item.status for item in submitting.records(name).values()] == [record.COMPLETED]
            )
        )
    wait_for(lambda: all(cluster.states(job) == ["COMPLETED"] for job in jobs))  # notes come last
    assert hidden_units(submitting, "live") == 16
    assert hidden_units(submitting, "copy") == 64
    notes = {name: next(iter(submitting.records(name).values())).notes for name in ("live", "copy")}
    assert any("code edited between submission and start" in note and "faults.py" in note
               for note in notes["live"])  # fmt: skip
    assert not any("code edited" in note for note in notes["copy"])
