"""The code that was submitted is the code that runs, or the record says that it was not."""

import json
from pathlib import Path

import pytest
import torch

from amp_sweep import record
from tests.conftest import CommandLine
from tests.slurm.conftest import SLURM, TINIEST, Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def hidden_units(folder: Path, name: str) -> int:
    (path,) = folder.glob(f"outputs/{name}/*/checkpoints/final.pt")
    return int(torch.load(path, weights_only=True)["weights"]["body.2.bias"].shape[0])


def test_code_edited_before_the_start_is_noted_and_a_snapshot_runs_as_submitted(
    cluster: Cluster, submitting: CommandLine
) -> None:
    held = ("launch.wait=false", "+hydra.launcher.additional_parameters.hold=true")
    for name, more in (("live", ()), ("copy", ("launch.snapshot=true",))):
        run = submitting.train(*SLURM, *TINIEST, *held, f"name={name}", *more)
        assert run.code == 0, run.text
    nets = submitting.folder / "nets.py"
    nets.write_text(nets.read_text().replace("32", "16"))
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
    assert hidden_units(submitting.folder, "live") == 16
    assert hidden_units(submitting.folder, "copy") == 32
    notes = {name: next(iter(submitting.records(name).values())).notes for name in ("live", "copy")}
    assert any("code edited between submission and start" in note and "nets.py" in note
               for note in notes["live"])  # fmt: skip
    assert not any("code edited" in note for note in notes["copy"])
