"""The process that looks at the machine: how its start, its answer and its end meet."""

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

from amp_sweep import forkserver
from amp_sweep.launch import NotPrepared, prepare_here
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


class Unstarted(Process):
    """As the same, where the server has ended."""

    def start(self) -> None:
        raise EOFError("gone")


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (-9, "the server that forks processes was killed by SIGKILL, perhaps for want of memory"),
        (1, "the server that forks processes ended with exit code 1; its own words stand above"),
        (None, "the preparing process could not be started: EOFError: gone"),
    ],
)
def test_a_server_that_ended_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, code: int | None, said: str
) -> None:
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: Context(Preparation()))
    monkeypatch.setattr(f"{__name__}.Process", Unstarted)
    monkeypatch.setattr(forkserver, "exit_code", lambda _: code)
    with pytest.raises(NotPrepared) as told:
        prepare_here([], set(), lambda *_: None)
    assert str(told.value) == said
