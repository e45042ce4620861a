"""The resource tracker that all processes share: it tidies up after killed ones without a word."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

# A process that leaves a semaphore behind, as one that is killed does.
KILLED = """
import multiprocessing, os, sys
from amp_sweep import forkserver
if sys.argv[1] == "quiet":
    forkserver.track_quietly()
    assert forkserver.NOT_SAID not in sys.warnoptions
lock = multiprocessing.get_context("forkserver").Lock()
print(lock._semlock.name, flush=True)
os._exit(0)
"""


def ending(how: str, *options: str) -> tuple[str, str]:
    """The name of the semaphore that was left, and what was said about it."""
    done = subprocess.run(
        [sys.executable, *options, "-c", KILLED, how],
        capture_output=True,
        text=True,
        check=True,
        cwd=REPOSITORY,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("options", [(), ("-W", "error"), ("-W", "always")])
def test_what_killed_processes_leave_is_unlinked_without_a_word(options: tuple[str, ...]) -> None:
    name, said = ending("quiet", *options)
    assert said == ""
    if Path("/dev/shm").is_dir():
        assert not Path(f"/dev/shm/sem.{name.removeprefix('/')}").exists()


def test_it_would_say_so_otherwise() -> None:
    assert "leaked semaphore" in ending("as it is")[1]
