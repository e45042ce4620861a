"""Standard streams that a command was started without (`>&-`, some daemons). No torch here."""

import os
import sys


def open_missing() -> None:
    """Open each standard stream that is closed on nothing: what goes there is lost, no error.

    To be called before all imports that may open files. In this order each gets its own number,
    the lowest that is free: child processes have it too, and no other file does.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            stream = os.fdopen(number, mode, encoding="utf-8", errors="replace", closefd=False)
            setattr(sys, name, stream)
