"""The process that looks at the machine: how its start, its answer and its end meet."""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from amp_sweep.launch import prepare_here
from amp_sweep.messages import Preparation


class Context:
    """A context of multiprocessing whose process has answered before its start returns."""

    Pipe = staticmethod(multiprocessing.Pipe)

    def __init__(self, answer: Preparation) -> None:
        self._answer = answer

    def Process(self, target: Callable[..., None], args: tuple[Any, ...], daemon: bool) -> Any:
        (answers,) = (item for item in args if isinstance(item, Connection))
        return Process(answers, self._answer)


class Process:
    """As a process of multiprocessing, which cannot be waited for before it is started."""

    def __init__(self, answers: Connection, answer: Preparation) -> None:
        self._answers = answers
        self._answer = answer
        self.started = False

    def start(self) -> None:
        self._answers.send(self._answer)
        time.sleep(0.3)
        self.started = True

    def join(self, _timeout: float | None = None) -> None:
        assert self.started, "can only join a started process"

    def is_alive(self) -> bool:
        return False


def test_an_answer_may_come_before_the_start_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Preparation(problems=["none"])
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: Context(answer))
    assert prepare_here([], set(), lambda *_: None) == answer
