"""Ctrl-C, counted instead of raised: the sweep decides what it means."""

import signal
import threading
from typing import Any, Self


class Interrupts:
    """Counts Ctrl-C (and SIGTERM, SIGHUP) while the `with` block lasts; restores handlers after."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._count) for number in self.NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _count(self, _number: int, _frame: object) -> None:
        self.count += 1
