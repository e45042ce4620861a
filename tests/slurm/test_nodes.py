"""Cells over two nodes, and an array of many."""

import pytest
import torch

from amp_sweep import record
from tests.conftest import CommandLine, wait_for
from tests.slurm.conftest import TINY, Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

CELL = ("parallel=ddp", "parallel.devices=4", "epochs=2", *TINY)
TWO_NODES = ("-m", "hydra/launcher=slurm_multinode")


def test_two_nodes_train_as_one_node_does_with_as_many_processes(submitting: CommandLine) -> None:
    run = submitting.train(*TWO_NODES, *CELL)
    assert run.code == 0, run.text
    (there,) = submitting.records().values()
    assert there.effective["world_size"] == 4
    assert there.effective["hosts"] == ["n1", "n1", "n2", "n2"]
    assert len(there.metrics["peak_rss_mib"]) == 4
    assert len(there.effective["device_names"]) == 4
    one = submitting.train(*CELL, "name=here")
    assert one.code == 0, one.text
    (here,) = submitting.records("here").values()
    for row, again in zip(here.epochs, there.epochs, strict=True):
        assert row["train_loss"] == pytest.approx(again["train_loss"], rel=1e-6)
    mine, theirs = submitting.final_weights("here"), submitting.final_weights()
    for key in mine:
        torch.testing.assert_close(mine[key], theirs[key])


def test_a_rank_that_fails_on_the_second_node_ends_the_cell_with_its_traceback(
    submitting: CommandLine,
) -> None:
    run = submitting.with_environment(FAULT="raises:3:1").train(*TWO_NODES, *CELL)
    assert run.code == 1, run.text
    (failed,) = submitting.records().values()
    assert failed.status == record.FAILED and failed.error is not None
    assert failed.error["rank"] == 3 and "ValueError: planted" in failed.error["traceback"]


def test_a_cancelled_cell_of_two_nodes_has_saved_and_resumes(
    cluster: Cluster, submitting: CommandLine
) -> None:
    slow = submitting.with_environment(SLOW="0.2")
    assert slow.train(*TWO_NODES, "launch.wait=false", *CELL).code == 0
    wait_for(lambda: [item for item in submitting.records().values() if item.epochs])
    (running,) = submitting.records().values()
    cluster("scancel", running.environment["slurm_job_ids"][0])
    wait_for(lambda: next(iter(submitting.records().values())).status == record.INTERRUPTED, 60)
    assert list(submitting.folder.rglob("last.pt"))
    again = submitting.train(*TWO_NODES, *CELL)
    assert again.code == 0, again.text
    (done,) = submitting.records().values()
    assert [segment["from_epoch"] > 0 for segment in done.segments] == [False, True]


def test_cells_that_use_one_node_are_refused_for_several(submitting: CommandLine) -> None:
    run = submitting.train(*TWO_NODES, "parallel=none,ddp", *TINY)
    assert run.code == 1
    assert "parallel=none uses one node" in run.err
    assert submitting.records() == {}
