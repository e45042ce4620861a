"""What takes minutes of waiting: it is started first and looked at last (see `conftest.py`)."""

import json

import pytest

from amp_sweep import record
from tests.conftest import CommandLine, wait_for
from tests.slurm.conftest import (
    ARRAY_SEEDS,
    SLOW_CELL,
    SLURM,
    Background,
    assert_same_weights,
)

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_at_its_time_limit_a_job_saves_requeues_and_ends_with_the_same_weights(
    background: Background, uninterrupted: CommandLine
) -> None:
    command = background.requeued
    wait_for(lambda: command.only_record().status == record.COMPLETED, 270)
    done = command.only_record()
    assert len(done.segments) >= 2
    assert len({segment["slurm_job_id"] for segment in done.segments}) == 1
    assert done.environment["slurm_job_ids"] == [done.segments[0]["slurm_job_id"]]
    table = command("analysis", "outputs/matrix")
    assert "stitched" in table.out
    assert_same_weights(command, uninterrupted)


def test_at_its_time_limit_without_a_requeue_left_the_cell_is_a_timeout_and_resumes(
    background: Background,
) -> None:
    command = background.without_requeue
    wait_for(lambda: command.only_record().status == record.TIMEOUT, 270)
    ended = command.only_record()
    assert ended.error is not None and "hydra.launcher.timeout_min" in ended.error["message"]
    again = command.train(*SLURM, *SLOW_CELL)
    assert again.code == 0, again.text
    assert len(command.only_record().segments) == 2
    assert "resumed at" in next(command.folder.rglob("train.log")).read_text()


def test_many_cells_go_as_one_array_with_seeds_outermost_from_inside_a_job(
    background: Background,
) -> None:
    out, most = background.end_of_array()
    assert background.array.returncode == 0, out
    cells = 2 * ARRAY_SEEDS
    assert f"{cells} of {cells} cells completed" in out
    assert most == 3
    index_of = {}
    for path in background.folder.glob("outputs/matrix/*/job.json"):
        array, _, index = json.loads(path.read_text())["job_id"].partition("_")
        found = record.read(path.with_name("record.json"))
        index_of[(found.cell["seed"], found.cell["precision"])] = (array, int(index))
    assert len({array for array, _ in index_of.values()}) == 1
    by_index = sorted(index_of, key=lambda cell: index_of[cell][1])
    assert [seed for seed, _ in by_index] == [index // 2 for index in range(cells)]


def test_a_preempted_job_saves_requeues_and_ends_with_the_same_weights(
    background: Background, uninterrupted: CommandLine
) -> None:
    job = background.preempted.result(270)
    command = background.commands["preempted"]
    done = command.only_record()
    assert [segment["from_epoch"] > 0 for segment in done.segments] == [False, True]
    assert {segment["slurm_job_id"] for segment in done.segments} == {job}
    assert_same_weights(command, uninterrupted)


def test_a_node_that_stops_in_mid_run_gives_its_cell_back_to_the_queue(
    background: Background, uninterrupted: CommandLine
) -> None:
    run = background.stopped.result(270)
    assert run.code == 0, run.text
    command = background.commands["stopped"]
    done = command.only_record()
    assert done.status == record.COMPLETED
    assert len(done.segments) == 2
    assert "resumed at" in next(command.folder.rglob("train.log")).read_text()
    assert_same_weights(command, uninterrupted)
