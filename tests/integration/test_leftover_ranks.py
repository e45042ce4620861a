"""Ranks that are still there when the command that started them was killed, and is given again."""

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from amp_sweep import record
from tests.conftest import CommandLine, wait_for
from tests.integration.test_faults import past_first_epoch, pid_of_rank
from tests.processes import freeze, gone

CELL = ("model.name=faults:Net", "data.image_size=16", "data.batch_size=48", "epochs=2",
        "data.train_images=480", "track=none")  # fmt: skip


@pytest.fixture
def frozen(command: CommandLine) -> Iterator[tuple[CommandLine, int]]:
    """A run in its second epoch whose launcher was killed; its only rank cannot notice that."""
    command.with_faults()
    process = command.with_environment(SLOW="0.1").popen(*CELL)
    wait_for(past_first_epoch(command))
    rank = pid_of_rank(command, 0)
    freeze(rank)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    yield command, rank
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=30)


def test_no_cell_begins_beside_a_rank_of_an_earlier_run(
    frozen: tuple[CommandLine, int],
) -> None:
    command, rank = frozen
    assert not gone(rank)
    again = command.train(*CELL)
    assert again.code == 0, again.text
    # It would go on writing the record and checkpoints as soon as it is woken up.
    assert gone(rank)
    found = command.only_record()
    assert found.status == record.COMPLETED
    assert len(found.segments) == 2
