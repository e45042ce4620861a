"""Look at this machine and make the data ready, in a process of its own."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection

from amp_sweep import forkserver
from amp_sweep.config import RunConfig
from amp_sweep.messages import Preparation

# An ending process gets this long.
GRACE_S = 5.0


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
) -> Preparation:
    """`worker.prepare` in a fresh process. Raises RuntimeError if that process dies."""
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_prepare_process, args=(cells, devices, nodes, sender, os.getpid()), daemon=False
    )
    process.start()
    sender.close()
    try:
        while True:
            try:
                answer = receiver.recv()
            except EOFError:
                process.join()
                raise RuntimeError(
                    f"the preparing process ended with exit code {process.exitcode}; see above"
                ) from None
            if isinstance(answer, Preparation):
                return answer
            progress(*answer)
    finally:
        process.join(GRACE_S)
        if process.is_alive():
            process.kill()
