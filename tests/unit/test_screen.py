"""What a person sees while a sweep runs."""

import contextlib
import os
import pty
import types
from pathlib import Path
from typing import Any

import pytest

from amp_sweep import record, screen
from amp_sweep.record import Record
from amp_sweep.screen import Screen


def result(status: str = record.COMPLETED, **changes: Any) -> Record:
    metrics = {"train_time_s": 62.0, "wall_time_s": 70.4, "images_per_s": 12345.6}
    return Record(
        **{
            "name": "matrix",
            "fingerprint": "00",
            "status": status,
            "cell": {},
            "overrides": [],
            "config": {},
            "metrics": {**metrics, "test_accuracy": 0.81234},
            **changes,
        }
    )


def at(epoch: int, step: int, epochs: int = 10, steps: int = 20) -> dict[str, Any]:
    return {"epoch": epoch, "epochs": epochs, "step": step, "steps": steps, "doing": "train"}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> types.SimpleNamespace:
    """A clock that a test sets by `clock.now`."""
    made = types.SimpleNamespace(now=1000.0)
    made.monotonic = lambda: made.now
    monkeypatch.setattr(screen, "time", made)
    return made


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output is taken for a terminal."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "1 s"), (1.4, "1 s"), (59.4, "59 s"), (60, "1 m 00 s"), (3725, "1 h 02 m 05 s")],
)
def test_a_remaining_time_is_said_in_whole_seconds(seconds: float, words: str) -> None:
    assert screen.left_words(seconds) == words


def test_a_finished_cell_says_what_it_cost_and_gave() -> None:
    words = screen.completed_words(result())
    assert words == "trained 1 m 02 s, in all 1 m 10 s, 12,346 images/s, accuracy 0.8123"


def test_a_figure_that_could_not_be_had_is_left_out() -> None:
    metrics = {"train_time_s": 0.5, "images_per_s": None, "test_accuracy": 0.0}
    assert screen.completed_words(result(metrics=metrics)) == "trained 0.50 s, accuracy 0.0000"


def test_an_error_comes_with_its_rank_and_the_end_of_its_traceback() -> None:
    trace = "\n".join(f"line {number}" for number in range(30))
    error = {"type": "ValueError", "message": "no", "traceback": trace, "rank": 0}
    words = screen.error_words(result(record.FAILED, error=error))
    assert words.startswith(" (rank 0): ValueError: no\n")
    assert "line 29" in words and "line 18" in words and "line 17" not in words
    # Out of memory needs no traceback; no rank is no rank 0.
    error["rank"] = None
    assert screen.error_words(result(record.OOM, error=error)) == ": ValueError: no"
    assert screen.error_words(result(record.INTERRUPTED)) == ""


def test_without_a_terminal_there_are_plain_lines(
    capsys: pytest.CaptureFixture[str], clock: types.SimpleNamespace
) -> None:
    with Screen(2) as shown:
        shown.cell_starts("none x fp32, seed 0", 10)
        shown.cell_ends("none x fp32, seed 0", result())
        shown.cell_starts("ddp x fp32, seed 0", 10)
        shown.cell_ends("ddp x fp32, seed 0", result(record.OOM))
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "[1/2] none x fp32, seed 0",
        f"[1/2] none x fp32, seed 0: {screen.completed_words(result())}",
        "[2/2] ddp x fp32, seed 0",
    ]
    assert err.splitlines() == ["[2/2] ddp x fp32, seed 0: OOM"]


def test_what_others_wrote_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Screen(1)
    text = "[bold]model.name=[/bold] [red] [/] http://x/y 0x1f \\[x]"
    shown.say(text)
    assert capsys.readouterr().out == f"{text}\n"
    shown.warn(text)
    assert capsys.readouterr().err == f"{text}\n"
    shown.fail(text)
    assert capsys.readouterr().err == f"error: {text}\n"
    long = "word " * 200
    shown.say(long)
    assert capsys.readouterr().out == f"{long}\n"  # not wrapped: a log's lines can be searched


def test_a_word_between_colons_stays_a_word(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Screen(1)
    shown.say("model.name=my:fire:network")
    shown.fail("my:fire:network")
    out, err = capsys.readouterr()
    assert (out, err) == ("model.name=my:fire:network\n", "error: my:fire:network\n")


def test_plain_progress_is_rare_and_says_what_is_left(
    capsys: pytest.CaptureFixture[str], clock: types.SimpleNamespace
) -> None:
    shown = Screen(3)
    shown.cell_starts("one", 10)
    clock.now += 100
    shown.cell_ends("one", result())
    shown.cell_starts("two", 10)
    capsys.readouterr()
    for _ in range(50):  # at most every 10 s
        clock.now += 1
        shown.cell_moves(at(5, 0))
    lines = capsys.readouterr().out.splitlines()
    assert 3 <= len(lines) <= 5
    clock.now += 11
    shown.cell_moves(at(5, 10))  # 55% after 61 s
    (line,) = capsys.readouterr().out.splitlines()
    left = 61 / 0.55 - 61
    rest = (100 + 61 / 0.55) / 2
    assert line == (
        f"[2/3] two: epoch 6/10, {left:.0f} s left in this cell, "
        f"{record.duration(left + rest)} in all"
    )


@pytest.mark.parametrize("began", [0, 6])
def test_at_the_very_start_nothing_is_promised(
    capsys: pytest.CaptureFixture[str], clock: types.SimpleNamespace, began: int
) -> None:
    shown = Screen(1)
    shown.cell_starts("one", 10)
    clock.now += 60
    shown.cell_moves({**at(began, 0), "began": began})
    assert capsys.readouterr().out == f"[1/1] one\n[1/1] one: epoch {began + 1}/10, train\n"
    clock.now += 60
    shown.cell_moves({**at(began + 2, 0), "began": began})  # two epochs in two minutes
    left = record.duration(60 * (10 - began - 2))
    assert f", {left} left in this cell" in capsys.readouterr().out


def test_the_last_evaluation_is_no_epoch_too_many(
    capsys: pytest.CaptureFixture[str], clock: types.SimpleNamespace
) -> None:
    shown = Screen(1)
    shown.cell_starts("one", 10)
    clock.now += 60
    shown.cell_moves(at(10, 0))
    assert "epoch 10/10" in capsys.readouterr().out


def test_preparing_says_when_it_is_done(
    capsys: pytest.CaptureFixture[str], clock: types.SimpleNamespace
) -> None:
    shown = Screen(1)
    clock.now += 100
    for done in range(1, 101):
        clock.now += 0.5
        shown.preparing("decoding train", done, 100)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "decoding train: 100/100"
    assert 5 <= len(lines) <= 7  # 50 s


def test_a_terminal_has_bars_and_keeps_the_lines(
    capsys: pytest.CaptureFixture[str], terminal: None
) -> None:
    with Screen(2) as shown:
        shown.preparing("decoding train", 1, 2)
        shown.preparing("decoding train", 2, 2)
        for name in ("one", "two"):
            shown.cell_starts(name, 3)
            shown.cell_moves(at(1, 10, epochs=3))
            shown.cell_ends(name, result())
    out = capsys.readouterr().out
    assert "sweep" in out and "decoding train" in out
    for line in ("[1/2] one: trained 1 m 02 s", "[2/2] two: trained 1 m 02 s"):
        assert line in out
    assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")  # the cursor is back


def test_a_stop_by_ctrl_z_finds_the_cursor_shown(
    capsys: pytest.CaptureFixture[str], terminal: None
) -> None:
    with Screen(1) as shown:
        shown.cell_starts("one", 3)
        shown.cell_moves(at(1, 10, epochs=3))
        shown.say("a line")
        out = capsys.readouterr().out
    assert out.rindex("\x1b[?25h") > out.rindex("\x1b[?25l")


def test_a_terminal_that_is_closed_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    far, near = pty.openpty()
    with os.fdopen(near, "w") as terminal:
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(f"sys.{name}", terminal)
        with Screen(1) as shown:
            shown.cell_starts("none x fp32", 10)
            os.close(far)
            shown.cell_moves(at(3, 10))
            shown.say("on standard output")
            shown.warn("on standard error")
        # Whoever else holds it can write, too.
        assert os.write(near, b"a table") == 7


def test_a_slow_reader_of_a_pipe_that_does_not_wait_misses_a_part_and_not_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, into = os.pipe()
    os.set_blocking(into, False)
    with os.fdopen(into, "w") as pipe:
        monkeypatch.setattr("sys.stdout", pipe)
        shown = Screen(1)
        for _ in range(50):
            shown.say("x" * 10_000)
        os.set_blocking(out, False)
        with contextlib.suppress(BlockingIOError):
            while os.read(out, 1 << 16):
                pass
        shown.say("later")
    with os.fdopen(out) as reader:
        assert reader.read().endswith("later\n")


def test_a_log_on_a_full_disk_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path("/dev/full").open("w") as log:
        monkeypatch.setattr("sys.stdout", log)
        Screen(1).say("lost")
        log.write("and no error at the end")
