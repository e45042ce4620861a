"""What dies in the probes costs their figures: the training is over, and the cell completed."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amp_sweep import record
from amp_sweep.record import Record
from tests.conftest import CommandLine, wait_for
from tests.integration.test_faults import (
    ENDS_WITHIN_S,
    STEPS,
    progress,
)
from tests.processes import wait_for_end_of_group

MakeCommandLine = Callable[[Path], CommandLine]

CELL = ("model.name=faults:Net", "data.image_size=16", "data.batch_size=48", "epochs=1",
        "track=none")  # fmt: skip
FIRST_PROBE = STEPS + 1  # the call of the network that comes after the last training step

CUT_SHORT = "the probes after the training were cut short: "
MISSING = "; figures that need them are missing"

DEATHS = [
    ("is_killed", "rank {rank} was killed by SIGKILL"),
    ("crashes", "rank {rank} was killed by SIGSEGV"),
    ("exits_at_once", "rank {rank} ended without a word, with exit code 0"),
    ("hangs", "no progress within launch.stall_timeout_s; the ranks were ended"),
]


@pytest.fixture
def faulty(command: CommandLine) -> Iterator[CommandLine]:
    yield command.with_faults()


def assert_completed_without_probes(command: CommandLine, found: Record, words: str) -> None:
    assert found.status == record.COMPLETED and found.error is None
    assert f"{CUT_SHORT}{words}{MISSING}" in found.notes
    assert len(found.segments) == 1 and len(found.epochs) == 1
    assert found.metrics["test_accuracy"] == found.epochs[0]["test_accuracy"] > 0.05
    assert found.metrics["train_time_s"] > 0
    for name in ("memory_parameters_mib", "flops_per_image", "mfu", "diagnosis"):
        assert found.metrics[name] is None
        assert any(name in note and "did not come to their end" in note for note in found.notes)
    folder = command.run_dir(f"{found.cell['parallel']}-fp32-s{found.cell['seed']}")
    assert sorted(path.name for path in folder.glob("checkpoints/*")) == ["best.pt", "final.pt"]
    assert not list(folder.glob("*.ending.json"))


@pytest.mark.parametrize(
    ("parallel", "rank", "deaths"), [("none", 0, DEATHS), ("ddp", 1, DEATHS[:3])]
)
def test_whatever_ends_a_rank_in_the_probes_leaves_its_cell_completed(
    faulty: CommandLine, parallel: str, rank: int, deaths: list[tuple[str, str]]
) -> None:
    faults = [f"{kind}:{rank}:{FIRST_PROBE}:{seed}" for seed, (kind, _) in enumerate(deaths)]
    seeds = ",".join(str(seed) for seed in range(len(deaths)))
    cells = ("-m", f"parallel={parallel}", f"seed={seeds}", *CELL, "launch.stall_timeout_s=6")
    command = faulty.with_environment(FAULT=",".join(faults))
    process = command.popen(*cells)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    wait_for_end_of_group(process.pid)
    records = {found.cell["seed"]: found for found in command.records().values()}
    for seed, (_, words) in enumerate(deaths):
        assert_completed_without_probes(command, records[seed], words.format(rank=rank))
        assert records[seed].segments[0]["wall_s"] < 2 * ENDS_WITHIN_S
    again = command.train(*cells)
    assert again.code == 0 and again.out.count("skipped, completed before") == len(deaths)


def test_ctrl_c_in_the_probes_keeps_the_cell_and_ends_the_sweep(faulty: CommandLine) -> None:
    command = faulty.with_environment(FAULT=f"hangs:0:{FIRST_PROBE}")
    process = command.popen("-m", "parallel=ddp", "seed=0,1", *CELL)
    wait_for(lambda: '"probe memory"' in progress(command))
    started = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert time.monotonic() - started < 2 * ENDS_WITHIN_S  # with the table, which follows
    wait_for_end_of_group(process.pid)
    first, second = (command.records()[f"ddp-fp32-s{seed}"] for seed in (0, 1))
    assert_completed_without_probes(command, first, "the run was interrupted")
    assert second.status == record.PENDING


def test_a_sweep_that_is_killed_in_the_probes_trains_nothing_again(faulty: CommandLine) -> None:
    command = faulty.with_environment(FAULT=f"hangs:1:{FIRST_PROBE}")
    process = command.popen("parallel=ddp", *CELL)
    wait_for(lambda: '"probe memory"' in progress(command))
    weights = next(command.folder.rglob("final.pt")).stat().st_mtime_ns
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    wait_for_end_of_group(process.pid)
    assert command.only_record().status == record.RUNNING
    again = faulty.train("parallel=ddp", *CELL)
    assert again.code == 0, again.text
    found = command.only_record()
    words = "the process that watched the ranks was killed"
    assert_completed_without_probes(command, found, words)
    assert found.metrics["wall_time_s"] >= found.metrics["train_time_s"]
    assert next(command.folder.rglob("final.pt")).stat().st_mtime_ns == weights


def test_what_an_earlier_run_said_never_completes_the_next(faulty: CommandLine) -> None:
    command = faulty.with_environment(FAULT="is_killed:0:3")
    assert command.train(*CELL).code == 1
    stale = command.run_dir("none") / "rank1.ending.json"
    stale.write_text(
        json.dumps(
            {"rank": 1, "pid": 2**22 + 1, "time": time.time(), "kind": "running", "trained": True}
        )
    )
    again = command.train(*CELL, "force=true")
    assert again.code == 1, again.text
    found = command.only_record()
    assert found.status == record.FAILED and not stale.exists()
    assert found.error is not None and found.error["message"] == "rank 0 was killed by SIGKILL"


def test_with_force_it_is_trained_anew(faulty: CommandLine) -> None:
    process = faulty.with_environment(FAULT=f"hangs:0:{FIRST_PROBE}").popen(*CELL)
    wait_for(lambda: '"probe memory"' in progress(faulty))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)
    again = faulty.train(*CELL, "force=true")
    assert again.code == 0, again.text
    found = faulty.only_record()
    assert found.metrics["memory_parameters_mib"] is not None
    assert not any(CUT_SHORT in note or "come to their end" in note for note in found.notes)


DAMAGE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"segments": [{}]}, {}),
    ({"segments": [{"started_at": None, "hostname": []}]}, {}),
    ({"environment": {"slurm_job_ids": None}}, {"time": None}),
    ({"metrics": {}}, {}),
    ({}, {"rank": None}),
]


def test_a_damaged_record_of_a_killed_run_costs_no_other_cell(faulty: CommandLine) -> None:
    seeds = ",".join(str(seed) for seed in range(len(DAMAGE)))
    cells = ("-m", f"seed={seeds}", *CELL, "measure.probes=false")
    assert faulty.train(*cells).code == 0
    for path in record.find(faulty.folder / "outputs" / "matrix"):
        found = json.loads(path.read_text())
        of_record, of_ending = DAMAGE[found["cell"]["seed"]]
        path.write_text(json.dumps({**found, "status": "running", **of_record}))
        ending = {"rank": 0, "pid": 2**22 + 1, "time": time.time(), "kind": "running"}
        said = {**ending, "trained": True, **of_ending}
        path.with_name("rank0.ending.json").write_text(json.dumps(said))
    again = faulty.train(*cells)
    assert again.code == 0 and "Traceback" not in again.text, again.text
    assert {found.status for found in faulty.records().values()} == {record.COMPLETED}
    assert not list(faulty.folder.rglob("*.ending.json"))
