"""The server that forks ranks: what it imports, and the resource tracker that all share."""

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from amp_sweep import forkserver
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


# In a TMPDIR whose sockets would have paths that the system refuses.
FAR_AWAY = """
import multiprocessing, os, tempfile
from multiprocessing import connection, forkserver as server
from amp_sweep import forkserver

def tell(answers):
    with connection.Listener(family="AF_UNIX") as made:
        answers.send((len(made.address), tempfile.gettempdir()))

if __name__ == "__main__":
    forkserver._preload = lambda _: []
    forkserver.start([])
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=tell, args=(sender,))
    process.start()
    print(*receiver.recv(), tempfile.gettempdir(), os.path.dirname(tempfile.mkdtemp()))
    process.join()
    assert os.path.exists(server._forkserver._forkserver_address)
    print(server._forkserver._forkserver_address)
"""


def test_a_long_tmpdir_is_everybodys_but_the_sockets(tmp_path: Path) -> None:
    (tmp_path / "far_away.py").write_text(FAR_AWAY)
    folder = tmp_path / ("t" * 100)
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, str(tmp_path / "far_away.py")],
        env={**os.environ, "PYTHONPATH": python_path(REPOSITORY), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    length, *folders, socket = done.stdout.split()
    assert int(length) <= forkserver.SOCKET_BYTES, done.stdout
    assert folders == [str(folder)] * 3
    assert not Path(socket).parent.exists()


def test_a_long_tmpdir_is_named_where_there_is_no_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("t" * 100)))
    monkeypatch.setattr(forkserver, "SHORT", str(tmp_path / "missing"))
    monkeypatch.delitem(multiprocessing.current_process()._config, "tempdir", raising=False)
    with pytest.raises(OSError, match=r"TMPDIR=.*ttt is too long for a socket, and .*missing"):
        forkserver.make_room_for_sockets()
    assert tempfile.gettempdir() == str(tmp_path / ("t" * 100))


ENDED = """
from amp_sweep import forkserver
assert forkserver.exit_code(0) is None
forkserver.start([])
assert forkserver.exit_code(0) is None
forkserver.end()
print(forkserver.exit_code(10), forkserver.exit_code(0))
forkserver.start([])
forkserver.end()
"""


def test_how_the_server_ended_can_be_asked_and_it_be_started_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDED], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert (done.stdout, done.stderr) == ("-9 -9\n", "")


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
