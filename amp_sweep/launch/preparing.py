"""Look at this machine and make the data ready, in a process of its own."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection

from amp_sweep import forkserver
from amp_sweep.config import RunConfig
from amp_sweep.launch.interrupts import Interrupted
from amp_sweep.launch.judge import how_it_died
from amp_sweep.messages import Preparation

# An ending process gets this long.
GRACE_S = 5.0
POLL_S = 0.05


class NotPrepared(Exception):
    """Nothing can be trained: `args` are the reasons, each a line for a person."""

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


def _ended(what: str, code: int) -> str:
    if code < 0:
        return f"{what} {how_it_died(code)}, perhaps for want of memory"
    return f"{what} ended with exit code {code}; its own words stand above"


def _not_started(error: Exception) -> str:
    code = forkserver.exit_code(GRACE_S)
    if code is not None:
        return _ended("the server that forks processes", code)
    return f"the preparing process could not be started: {type(error).__name__}: {error}"


def _prepare_process(
    cells: list[RunConfig], devices: set[str], nodes: int, answers: Connection, launcher: int
) -> None:
    from amp_sweep.worker import prepare  # brings torch

    forkserver.die_with(launcher)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Ignored by the forkserver; helpers of this process must be able to end one another.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def progress(what: str, done: int, total: int) -> None:
        answers.send((what, done, total))

    answers.send(prepare(cells, devices, progress, nodes))


def prepare_here(
    cells: list[RunConfig],
    devices: set[str],
    progress: Callable[[str, int, int], None],
    nodes: int = 1,
    stopped: Callable[[], object] = lambda: False,
) -> Preparation:
    """`worker.prepare` in a fresh process.

    Raises Interrupted soon after `stopped` says so, and NotPrepared if that process dies.
    """
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_prepare_process, args=(cells, devices, nodes, sender, os.getpid()), daemon=False
    )
    errors: list[Exception] = []

    def start() -> None:
        try:
            process.start()
        except Exception as error:  # most likely the server has ended
            errors.append(error)
        finally:
            sender.close()

    if stopped():  # before there is a start to end
        forkserver.end()
        raise Interrupted
    # The server answers only when it has imported everything: too long to wait for Ctrl-C.
    starting = threading.Thread(target=start, name="start of the preparing process", daemon=True)
    starting.start()
    try:
        while True:
            if stopped():
                raise Interrupted
            if not receiver.poll(POLL_S):
                continue
            try:
                answer = receiver.recv()
            except (EOFError, OSError):
                starting.join()
                if stopped():
                    raise Interrupted from None
                if errors:
                    raise NotPrepared(_not_started(errors[0])) from errors[0]
                process.join()
                raise NotPrepared(_ended("the preparing process", process.exitcode or 0)) from None
            if isinstance(answer, Preparation):
                starting.join()  # what has answered may not be known as started yet
                if not errors:
                    process.join(GRACE_S)
                return answer
            progress(*answer)
    except Interrupted:
        forkserver.end()
        starting.join(GRACE_S)
        # By its number: without the server it seems to be gone.
        if process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        raise
    finally:
        starting.join(GRACE_S)
        if process.is_alive():
            process.kill()
            process.join()
