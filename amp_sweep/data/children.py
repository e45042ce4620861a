"""Helper processes end with the process they help, and for nobody else. No torch here.

Ctrl-C reaches every process of a terminal, and SLURM sends its warnings to every process of a
job. A helper that died of one would take down the process it helps before that one has done
what the signal asks of it.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Collection, Iterator
from multiprocessing import resource_tracker

# What is meant for the process that is helped.
FOR_THE_PARENT = frozenset({signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2})


@contextlib.contextmanager
def signals_held(signals: Collection[signal.Signals]) -> Iterator[None]:
    """Processes started in the block never get these signals: they inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        # Starting the tracker unblocks some signals again: not later, inside the block.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end_with_parent() -> None:
    """End this process when its parent is gone, however the parent went."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch(sentinel: int) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
