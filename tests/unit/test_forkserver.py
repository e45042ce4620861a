"""The server that forks ranks: what it imports, and the resource tracker that all share."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY, python_path

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


# Asked in a process that a real server has forked.
IN_A_RANK = """
import gc, multiprocessing, sys
from amp_sweep import forkserver

def tell(answers):
    answers.send((gc.isenabled(), gc.get_freeze_count() > 100_000, "torch" in sys.modules))

if __name__ == "__main__":
    forkserver.start([])
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=tell, args=(sender,))
    process.start()
    print(*receiver.recv())
    process.join()
"""


def test_what_is_imported_is_kept_from_a_garbage_collection_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "in_a_rank.py").write_text(IN_A_RANK)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "in_a_rank.py")],
        env={**os.environ, "PYTHONPATH": python_path(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "True", "True"], done.stderr
