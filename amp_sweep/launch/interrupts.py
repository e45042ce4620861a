"""Ctrl-C, counted instead of raised: the sweep decides what it means."""

import signal
import threading
from typing import Any, Self

# Ranks that are told to stop get this long to come to the end of their step.
GRACE_S = 5.0
# SLURM's warning comes hydra.launcher.signal_delay_s (120) ahead: a whole evaluation may end.
WARNED_S = 60.0


class Interrupted(Exception):
    """Somebody wants the work to stop before it is done."""


class Interrupts:
    """Counts Ctrl-C and its like while the `with` block lasts; restores handlers after.

    SIGUSR2 is what SLURM sends ahead of a time limit or a preemption. Only a person's second
    Ctrl-C counts as a second one: SLURM sends several signals for one reason. Under `nohup` the end
    of the terminal is none of them.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)

    def __init__(self) -> None:
        self.count = 0
        self.grace_s = GRACE_S
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            numbers = set(self.NUMBERS)
            if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
                numbers.remove(signal.SIGHUP)
            self._before = {number: signal.signal(number, self._count) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _count(self, number: int, _frame: object) -> None:
        if number == signal.SIGUSR2 and not self.count:
            self.grace_s = WARNED_S
        if number == signal.SIGINT or not self.count:
            self.count += 1
