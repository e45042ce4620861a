"""A sweep on this machine, where the machine cannot run the cell."""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from amp_sweep import forkserver, launch, local, record, sweep
from amp_sweep.cells import NOT_COMPLETED, Cell
from amp_sweep.launch import Interrupts
from amp_sweep.lock import Lock
from amp_sweep.messages import Preparation
from amp_sweep.paths import RunPaths
from amp_sweep.screen import Screen
from tests.unit.conftest import make_config

BEGUN = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cell:
    """A cell whose launcher was killed, on a machine named elsewhere, when it was trained."""
    monkeypatch.chdir(tmp_path)
    made = Cell(make_config(), ())
    paths = RunPaths(made.root)
    made.root.mkdir(parents=True)
    found = launch.record_for(made.config, [])
    found.status = record.RUNNING
    found.segments = [{"started_at": BEGUN, "hostname": "elsewhere", "native_bf16": True}]
    found.metrics = {"train_time_s": 20.0, "test_accuracy": 0.5}
    record.write(paths.record, found)
    ending = {"rank": 0, "pid": os.getpid(), "time": 2e9, "kind": "running", "trained": True}
    paths.ending(0).write_text(json.dumps(ending))
    return made


def train(cell: Cell) -> list[Cell]:
    """Train it where that is not possible; what another process holds."""
    here = Preparation(
        environments={"auto": {}}, prepared=[None], plans=[None], invalid=["no such device here"]
    )
    with Screen(1) as screen:
        return local._train_all([cell], {cell.root: 0}, here, screen, Interrupts(), launch.ALONE)


def test_what_was_trained_elsewhere_is_concluded_where_it_cannot_run(cell: Cell) -> None:
    assert train(cell) == []
    done = record.read(RunPaths(cell.root).record)
    assert (done.status, done.error) == (record.COMPLETED, None)
    assert done.effective["native_bf16"] is True
    assert not RunPaths(cell.root).lock.exists()


@pytest.mark.parametrize("why", ["force", "untrained"])
def test_what_is_to_be_trained_is_invalid_where_it_cannot_run(cell: Cell, why: str) -> None:
    if why == "force":
        cell = Cell(dataclasses.replace(cell.config, force=True), ())
    else:
        RunPaths(cell.root).ending(0).unlink()
    assert train(cell) == []
    done = record.read(RunPaths(cell.root).record)
    assert done.status == record.INVALID
    assert done.error is not None and done.error["message"] == "no such device here"


def test_what_another_process_trains_is_passed_over_where_it_cannot_run(cell: Cell) -> None:
    before = RunPaths(cell.root).record.read_bytes()
    with Lock(RunPaths(cell.root).lock):
        assert train(cell) == [cell]
    assert RunPaths(cell.root).record.read_bytes() == before


def test_a_cell_about_which_nothing_can_be_written_does_not_end_the_sweep(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_path: Path, _text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "write_atomic", full)
    assert train(cell) == []
    assert "No space left on device" in "".join(capsys.readouterr())


@pytest.mark.parametrize(("checkpoint", "status"), [(True, "interrupted"), (False, "invalid")])
def test_what_another_machine_can_resume_is_not_overwritten(
    cell: Cell, checkpoint: bool, status: str
) -> None:
    paths = RunPaths(cell.root)
    paths.ending(0).unlink()
    found = record.read(paths.record)
    found.status = record.INTERRUPTED
    record.write(paths.record, found)
    if checkpoint:
        paths.checkpoints.mkdir()
        paths.last_checkpoint.write_bytes(b"a checkpoint")
    assert train(cell) == []
    assert record.read(paths.record).status == status


@pytest.mark.parametrize("tables", [True, False])
def test_what_could_not_be_prepared_is_a_line_here_and_an_error_for_a_job(
    cell: Cell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tables: bool
) -> None:
    def full(_networks: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(forkserver, "start", full)
    if not tables:
        with pytest.raises(launch.NotPrepared, match="No space left"):
            sweep.run([cell], tables=False)
        return
    assert sweep.run([cell]) == NOT_COMPLETED
    said = "error: the server that forks processes could not be started: "
    assert capsys.readouterr().err == f"{said}[Errno 28] No space left on device\n"
