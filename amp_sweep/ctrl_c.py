"""Ctrl-C in a command, from its first import on: one line, exit code 130. No torch here."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

EXIT_CODE = 130


def _end(_number: int, _frame: object) -> None:
    # Not an exception: in the middle of an import, or in a callback, that would be printed.
    os.write(2, b"interrupted\n")
    os._exit(EXIT_CODE)


def ends_this_process() -> None:
    """From here on, Ctrl-C ends this process at once; for a command that keeps nothing unsaved.

    A process that ignores Ctrl-C (`nohup`, a shell's background) or handles it is left as it is.
    """
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


@contextlib.contextmanager
def ends_the_command() -> Iterator[None]:
    """The same while the block lasts, or the function that this decorates."""
    before = signal.getsignal(signal.SIGINT)
    ends_this_process()
    try:
        yield
    finally:
        if before is signal.default_int_handler and signal.getsignal(signal.SIGINT) is _end:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Ctrl-C waits until the block ends; a process that is started in it never gets one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
