"""The matrix through SLURM: the same records and tables as here, and one failing cell of nine."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from amp_sweep import record
from tests.conftest import CommandLine, Run
from tests.slurm.conftest import TINY, Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ALL = ("-m", "parallel=none,dp,ddp", "precision=fp32,autocast,scaler", "epochs=2", *TINY)
SLURM = ("hydra/launcher=slurm", "hydra.launcher.array_parallelism=4")


@pytest.fixture(scope="module")
def failing(
    tmp_path_factory: pytest.TempPathFactory, make_submitting: Callable[[Path], CommandLine]
) -> tuple[CommandLine, Run]:
    command = make_submitting(tmp_path_factory.mktemp("matrix"))
    return command, command.with_environment(FAULT="raises_in_float32:1:1").train(*ALL, *SLURM)


@pytest.fixture(scope="module")
def repaired(failing: tuple[CommandLine, Run]) -> tuple[CommandLine, Run]:
    command, _ = failing
    return command, command.train(*ALL, *SLURM)


def jobs_of(command: CommandLine) -> set[str]:
    return {path.name for path in command.folder.glob("outputs/matrix/.submitit/*")}


def test_one_failing_cell_of_nine_leaves_the_others_and_shows_its_traceback(
    failing: tuple[CommandLine, Run],
) -> None:
    command, run = failing
    assert run.code == 1, run.text
    failed = {k for k, item in command.records().items() if item.status == record.FAILED}
    done = {k for k, item in command.records().items() if item.status == record.COMPLETED}
    assert failed == {"ddp-fp32-s0"} and len(done) == 8
    assert "9 of 9 cells submitted" in run.out
    assert "FAILED" in run.err and "ValueError: planted" in run.err and "faults.py" in run.err
    assert "1 of 9 cells did not complete" in run.err
    assert "8 of 9 cells completed" in run.out


def test_the_same_command_submits_only_what_is_left(
    failing: tuple[CommandLine, Run], repaired: tuple[CommandLine, Run]
) -> None:
    _, run = repaired
    assert run.code == 0, run.text
    assert run.out.count("skipped, completed before") == 8
    assert "1 of 1 cells submitted" in run.out
    assert "9 of 9 cells completed" in run.out


def test_when_all_is_completed_nothing_is_submitted(
    cluster: Cluster, repaired: tuple[CommandLine, Run]
) -> None:
    command, _ = repaired
    before = jobs_of(command), cluster("squeue", "-h", "-t", "all", "-o", "%i")
    run = command.train(*ALL, *SLURM)
    assert run.code == 0, run.text
    assert run.out.count("skipped, completed before") == 9
    assert before == (jobs_of(command), cluster("squeue", "-h", "-t", "all", "-o", "%i"))


def test_weights_and_figures_are_those_of_the_same_command_without_slurm(
    repaired: tuple[CommandLine, Run],
) -> None:
    command, there = repaired
    here = command.train(*ALL, "name=here")
    assert here.code == 0, here.text
    one, other = command.records("here"), command.records()
    assert one.keys() == other.keys()
    for cell, item in one.items():
        for row, again in zip(item.epochs, other[cell].epochs, strict=True):
            assert row["train_loss"] == pytest.approx(again["train_loss"], rel=1e-5)
        states = [command.final_weights(name, cell) for name in ("here", "matrix")]
        for key in states[0]:
            torch.testing.assert_close(states[0][key], states[1][key])
    heads = [[line.split() for line in run.out.splitlines() if line.startswith("parallel")]
             for run in (here, there)]  # fmt: skip
    assert heads[0] == heads[1] != []


def test_the_record_names_the_job_and_its_node(
    cluster: Cluster, repaired: tuple[CommandLine, Run]
) -> None:
    for cell, item in repaired[0].records().items():
        ids = item.environment["slurm_job_ids"]
        assert len(ids) == (2 if cell == "ddp-fp32-s0" else 1)
        assert item.segments[-1]["slurm_job_id"] == ids[-1]
        assert item.environment["hostname"] in ("n1", "n2")
        assert item.environment["cores"] == 2  # those of the largest cell, for all
