"""Killed ranks leave semaphores behind: they are tidied up, and no terminal hears of it."""

import os
import re
import signal

import pytest

from amp_sweep import record
from tests.conftest import CommandLine, wait_for

FAULTY = ("model.name=faults:Net", "data.image_size=16", "data.batch_size=48", "epochs=3",
          "track=none")  # fmt: skip


@pytest.mark.parametrize("parallel", ["none", "ddp"])
def test_a_killed_rank_with_loader_processes_ends_without_pythons_words_about_leaks(
    command: CommandLine, parallel: str
) -> None:
    loader = ("data.pipeline=loader", "data.workers=1")
    slow = command.with_faults().with_environment(SLOW="0.1")
    process = slow.popen(f"parallel={parallel}", *FAULTY, *loader)
    found = command.folder.glob

    def training() -> bool:
        texts = "".join(path.read_text() for path in found("outputs/*/*/progress.json"))
        return re.search(r'"step": ([3-9]|\d\d)', texts) is not None

    wait_for(training)
    (said,) = found(f"outputs/*/*/rank{0 if parallel == 'none' else 1}.ending.json")
    pid = re.search(r'"pid": (\d+)', said.read_text())
    assert pid is not None
    os.kill(int(pid.group(1)), signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert command.only_record().status == record.FAILED
    assert "was killed by SIGKILL" in out
    assert "resource_tracker" not in out and "leaked" not in out
