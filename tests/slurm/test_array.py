"""Many cells as one array, submitted from inside a job; the code that was submitted runs."""

import contextlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from amp_sweep import record
from tests.conftest import CommandLine
from tests.slurm.conftest import TINY, Cluster, wait_for

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

SLURM = ("-m", "hydra/launcher=slurm")
# The fewest instructions a cell can have: what is left is Python's and PyTorch's start.
TINIEST = ("epochs=1", "data.train_images=96", "data.test_images=48", *TINY)


def test_fifty_cells_go_as_one_array_with_seeds_outermost_from_inside_a_job(
    cluster: Cluster, submitting: CommandLine
) -> None:
    arguments = ("seed=range(25)", "precision=fp32,autocast", *TINIEST)
    process = subprocess.Popen(
        ["srun", "--quiet", "-p", "spare", "-n1", sys.executable, "-m", "amp_sweep.train",
         *SLURM, *arguments, "hydra.launcher.array_parallelism=3"],
        cwd=submitting.folder, env=submitting.environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    most = 0
    while process.poll() is None:
        states = Counter(cluster("squeue", "-h", "-p", "debug", "-o", "%T").split())
        most = max(most, states["RUNNING"])
        wait_a_little(process)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert "50 of 50 cells completed" in out
    assert 2 <= most <= 3
    index_of = {}
    for path in submitting.folder.glob("outputs/matrix/*/job.json"):
        array, _, index = json.loads(path.read_text())["job_id"].partition("_")
        found = record.read(path.with_name("record.json"))
        index_of[(found.cell["seed"], found.cell["precision"])] = (array, int(index))
    assert len({array for array, _ in index_of.values()}) == 1
    by_index = sorted(index_of, key=lambda cell: index_of[cell][1])
    assert [seed for seed, _ in by_index] == [i // 2 for i in range(50)]


def wait_a_little(process: "subprocess.Popen[str]") -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)


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
    for path in submitting.folder.glob("outputs/*/*/job.json"):
        cluster("scontrol", "release", json.loads(path.read_text())["job_id"])
    for name in ("live", "copy"):
        wait_for(
            lambda name=name: (
                [item.status for item in submitting.records(name).values()] == [record.COMPLETED]
            )
        )
    wait_for(lambda: not cluster("squeue", "-h", "-t", "RUNNING", "-u", "root"))
    assert hidden_units(submitting.folder, "live") == 16
    assert hidden_units(submitting.folder, "copy") == 32
    notes = {name: next(iter(submitting.records(name).values())).notes for name in ("live", "copy")}
    assert any("code edited between submission and start" in note and "nets.py" in note
               for note in notes["live"])  # fmt: skip
    assert not any("code edited" in note for note in notes["copy"])
