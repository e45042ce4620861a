"""The server that forks ranks: it imports once what every rank needs. No torch here."""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

import psutil

from amp_sweep import config, ctrl_c

# Before PyTorch.
FIRST = ("amp_sweep.uncollected", "amp_sweep.host_memory")
# To look at the machine and the data.
LOOK = (
    # A forked process runs the main module again, which imports these two. (The module itself
    # must not be there yet: runpy would warn.)
    "hydra",
    "amp_sweep.sweep",
    "amp_sweep.worker",
)
TRAIN = (
    "amp_sweep.data.pipeline",
    "torch.distributed.launcher.api",
    "torch._dynamo",  # which the first optimizer imports
    "torch.utils.tensorboard",
)
# Only its own networks need it.
CLASSIFIERS = "torchvision"
LAST = "amp_sweep.frozen"

# SLURM sends these to every process of a job, a terminal's end to every process of its session.
# They are meant for the launcher: were the server to die of one, its ranks would die unsaved.
# Ctrl-C is too; it is held instead, so that none is lost while the server starts.
FOR_THE_LAUNCHER = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

PARENT_CHECK_S = 0.5
EXIT_CHECK_S = 0.05

# Folder of sockets where TMPDIR is too long: a socket's path has 107 bytes at most, 103 on macOS.
SHORT = "/tmp"
SOCKET_BYTES = 103
SOCKET_NAME = "/pymp-12345678/listener-12345678"  # as Python makes them

# Of the tracker's warnings; as Python's option -W has it.
NOT_SAID = "ignore:resource_tracker:UserWarning"


def _preload(networks: Iterable[str]) -> list[str]:
    names = set(networks)
    if not names:
        return [*FIRST, *LOOK, LAST]
    stock = any(name != "alexnet" and not config.is_own_callable(name) for name in names)
    return [*FIRST, *LOOK, *TRAIN, *([CLASSIFIERS] if stock else []), LAST]


def track_quietly() -> None:
    """Start Python's resource tracker, which all further processes share.

    It unlinks the semaphores and the shared memory of processes that were killed, when all are
    gone, and says so on the terminal as if that were a fault. It gets our options for warnings.
    """
    sys.warnoptions.append(NOT_SAID)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(NOT_SAID)


def make_room_for_sockets() -> None:
    """Let the sockets of this process and its children have paths that are short enough.

    They lie in one folder, which multiprocessing makes in TMPDIR when it is first needed; all
    else stays in TMPDIR. Raises OSError.
    """
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual + SOCKET_NAME)) <= SOCKET_BYTES:
        return
    before, tempfile.tempdir = tempfile.tempdir, SHORT
    try:
        util.get_temp_dir()
    except OSError as error:
        raise OSError(f"TMPDIR={usual} is too long for a socket, and {error}") from error
    finally:
        tempfile.tempdir = before


def start(networks: Iterable[str]) -> None:
    """Start the server; harmless to call again.

    `networks` are the names of those that will be trained; none, only to look at this machine.
    Raises OSError.
    """
    make_room_for_sockets()
    multiprocessing.set_forkserver_preload(_preload(networks))
    if threading.current_thread() is not threading.main_thread():
        track_quietly()
        forkserver.ensure_running()
        return
    # What is ignored here is ignored there too: that passes through fork and exec.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in FOR_THE_LAUNCHER}
    try:
        track_quietly()  # not inside: it would let Ctrl-C through again
        with ctrl_c.held():
            forkserver.ensure_running()
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: it was set outside of Python
                signal.signal(number, handler)


def end() -> None:
    """End the server now, though it may still be importing; `start` starts another."""
    pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def exit_code(wait_s: float) -> int | None:
    """How the server ended, a signal as its number below 0; None if it lives on for `wait_s`."""
    pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    if pid is None or not hasattr(os, "waitid"):  # macOS
        return None
    deadline = time.monotonic() + wait_s
    while True:
        # It is left to be waited for: Python does that when it needs the server again.
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is not None:
            code = int(found.si_status)
            return code if found.si_code == os.CLD_EXITED else -code
        if time.monotonic() > deadline:
            return None
        time.sleep(EXIT_CHECK_S)


def key() -> bytes | None:
    """What a process must show to the server, where this Python has it (3.14)."""
    found: bytes | None = getattr(forkserver._forkserver, "_forkserver_authkey", None)
    return found


def share(shown: bytes | None) -> None:
    """In a process that the server has forked: let the server fork this one's children too.

    Python says that "a child process will just reuse the forkserver started by its parent", and
    gives it all that takes; since 3.7 it starts another all the same, which imports everything
    once more. `shown` is the parent's `key()`.
    """
    server: Any = forkserver._forkserver
    if None in (
        getattr(server, "_forkserver_address", None),
        getattr(server, "_forkserver_alive_fd", None),
    ):
        return  # a Python that does it otherwise: it may start another
    if shown is not None:
        server._forkserver_authkey = shown
    server.ensure_running = lambda: None


def die_with(pid: int) -> None:
    """End this process when process `pid` is gone, whatever that was killed by.

    It is not the parent: that is the server, which lives as long as its children do.
    """
    try:
        other = psutil.Process(pid)
    except psutil.NoSuchProcess:
        os.kill(os.getpid(), signal.SIGKILL)

    def watch() -> None:
        # is_running knows a process id that was used again.
        while other.is_running() and other.status() != psutil.STATUS_ZOMBIE:
            time.sleep(PARENT_CHECK_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()
