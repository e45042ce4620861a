"""Ctrl-C while the analysis is still importing: one line, exit code 130. Nothing heavy up here."""

import os
import signal
import threading

EXIT_CODE = 130


def _end(_number: int, _frame: object) -> None:
    # Not an exception: in the middle of an import that would be printed.
    os.write(2, b"interrupted\n")
    os._exit(EXIT_CODE)


def _change(before: object, after: signal.Handlers | object) -> None:
    here = threading.current_thread() is threading.main_thread()
    if here and signal.getsignal(signal.SIGINT) is before:
        signal.signal(signal.SIGINT, after)  # type: ignore[arg-type]


def ends_this_process() -> None:
    """From here on, Ctrl-C ends this process at once, unless it is ignored or handled already."""
    _change(signal.default_int_handler, _end)


def interrupts() -> None:
    """From here on, it is KeyboardInterrupt again: files are being written, and tidied up."""
    _change(_end, signal.default_int_handler)
