"""What a person sees while a sweep runs: bars with ETA on a terminal, plain lines elsewhere."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import IO, Any, Self, cast

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
)

from amp_sweep import record
from amp_sweep.launch.judge import CUT_SHORT
from amp_sweep.messages import time_left_s
from amp_sweep.record import Record

# Without a terminal a line like "epoch 3/10" is printed at most this often.
PLAIN_LINE_S = 10.0


class _Lasting:
    """A stream that may be written to after its end: nobody reads that, and the work goes on.

    A terminal is closed, the reader of a pipe is gone, the disk with the log is full.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._dropped_at_the_end():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._dropped_at_the_end():
            self._stream.flush()

    @contextlib.contextmanager
    def _dropped_at_the_end(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError:
            pass  # a slow reader of a pipe that does not wait: he misses this, and may go on
        except OSError:
            # For all who write there: the table's process, and Python's last flush as it ends.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def _console(stream: IO[str]) -> Console:
    file = cast(IO[str], _Lasting(stream))
    return Console(file=file, highlight=False, emoji=False, soft_wrap=True)


class Screen:
    """The terminal, which only the sweep's process writes to."""

    def __init__(self, total: int) -> None:
        self._console = _console(sys.stdout)
        self._errors = _console(sys.stderr)
        self._total = total
        self._ended = 0
        self._ended_s = 0.0
        self._name = ""
        self._began = time.monotonic()
        self._last_line = 0.0
        self._last_epoch = 0
        self._bars: Progress | None = None
        self._sweep_bar: TaskID | None = None
        self._cell_bar: TaskID | None = None
        self._data_bar: TaskID | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                console=self._console,
                transient=True,
            )
            self._bars.start()
            # rich hides it; Ctrl-Z would leave the shell without one.
            self._console.show_cursor(True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def say(self, text: str) -> None:
        """A line of information."""
        self._console.print(escape(text))

    def warn(self, text: str) -> None:
        """A line that a person should not miss; on standard error."""
        self._errors.print(escape(text), style="yellow")

    def fail(self, text: str) -> None:
        """An error; on standard error."""
        self._errors.print(f"[bold red]error:[/] {escape(text)}")

    def preparing(self, what: str, done: int, total: int) -> None:
        """Progress of work before the first cell, such as decoding images."""
        if self._bars is not None:
            if self._data_bar is None:
                self._data_bar = self._bars.add_task(what, total=total, note="")
            self._bars.update(self._data_bar, description=what, completed=done, total=total)
            if done >= total:
                self._bars.remove_task(self._data_bar)
                self._data_bar = None
        elif done >= total or time.monotonic() - self._last_line > PLAIN_LINE_S:
            self._last_line = time.monotonic()
            self.say(f"{what}: {done}/{total}")

    def cell_starts(self, name: str, epochs: int) -> None:
        """A cell begins."""
        self._name, self._began = name, time.monotonic()
        self._last_line = self._began
        if self._bars is None:
            self.say(f"[{self._ended + 1}/{self._total}] {name}")
            return
        if self._sweep_bar is None:
            self._sweep_bar = self._bars.add_task("sweep", total=self._total, note="")
        if self._cell_bar is None:
            self._cell_bar = self._bars.add_task(name, total=epochs, note="starting")
        else:  # not another one: rich keeps what it drew of each, also of those it removed
            self._bars.reset(
                self._cell_bar, description=name, total=epochs, note="starting", visible=True
            )

    def cell_moves(self, values: dict[str, Any]) -> None:
        """Rank 0 said where it is: see `Writer.sign_of_life`."""
        row = values.get("last_epoch")
        # A single run tells every epoch; in a sweep that would bury the cells.
        if self._total == 1 and row and row["epoch"] > self._last_epoch:
            self._last_epoch = row["epoch"]
            self._last_line = time.monotonic()
            self.say(
                f"epoch {row['epoch']}/{values['epochs']}: {record.duration(row['train_time_s'])}, "
                f"loss {row['train_loss']:.4f}, accuracy {row['test_accuracy']:.4f}"
            )
        left = time_left_s(values, time.monotonic() - self._began)
        note = f"{left_words(left)} left in this cell" if left is not None else values["doing"]
        if self._bars is not None and self._cell_bar is not None and self._sweep_bar is not None:
            self._bars.update(self._cell_bar, completed=values["epoch"], note=note)
            all_left = self._sweep_left(left)
            sweep_note = f"{left_words(all_left)} left" if all_left is not None else ""
            self._bars.update(self._sweep_bar, completed=self._ended, note=sweep_note)
        elif time.monotonic() - self._last_line > PLAIN_LINE_S:
            self._last_line = time.monotonic()
            all_left = self._sweep_left(left)
            more = f", {left_words(all_left)} in all" if all_left is not None else ""
            epoch = min(values["epoch"] + 1, values["epochs"])
            self.say(
                f"[{self._ended + 1}/{self._total}] {self._name}: "
                f"epoch {epoch}/{values['epochs']}, {note}{more}"
            )

    def _sweep_left(self, cell_left_s: float | None) -> float | None:
        """Seconds to the sweep's end, if the cells to come take what those before took."""
        if cell_left_s is None:
            return None
        spent = time.monotonic() - self._began + cell_left_s
        mean = (self._ended_s + spent) / (self._ended + 1)
        return cell_left_s + mean * (self._total - self._ended - 1)

    def cell_ends(self, name: str, result: Record) -> None:
        """A cell is over: one line, and the error when there is one."""
        self._ended += 1
        self._ended_s += time.monotonic() - self._began
        if self._bars is not None and self._cell_bar is not None and self._sweep_bar is not None:
            self._bars.update(self._cell_bar, visible=False)
            self._bars.update(self._sweep_bar, completed=self._ended)
        where = f"[{self._ended}/{self._total}] {name}"
        if result.status == record.COMPLETED:
            self.say(f"{where}: {completed_words(result)}")
            for note in result.notes:
                if note.startswith(CUT_SHORT):
                    self.warn(f"{where}: {note}")
            return
        self.warn(f"{where}: {result.status.upper()}{error_words(result)}")


def left_words(seconds: float) -> str:
    """A remaining time, in whole seconds."""
    return record.duration(max(60.0, seconds)) if seconds >= 60 else f"{max(1, round(seconds))} s"


def completed_words(result: Record) -> str:
    """What a finished cell cost and gave."""
    metrics = result.metrics
    parts = [f"trained {record.duration(metrics['train_time_s'])}"]
    if metrics.get("wall_time_s") is not None:
        parts.append(f"in all {record.duration(metrics['wall_time_s'])}")
    if metrics.get("images_per_s") is not None:
        parts.append(f"{metrics['images_per_s']:,.0f} images/s")
    if metrics.get("test_accuracy") is not None:
        parts.append(f"accuracy {metrics['test_accuracy']:.4f}")
    return ", ".join(parts)


def error_words(result: Record) -> str:
    """The error of a cell, with its rank and the end of its traceback."""
    error = result.error
    if not error:
        return ""
    rank = f" (rank {error['rank']})" if error.get("rank") is not None else ""
    if result.status == record.INVALID:
        return f": {error.get('message')}"
    text = f"{rank}: {error.get('type')}: {error.get('message')}"
    trace = error.get("traceback")
    if trace and result.status == record.FAILED:
        text += "\n" + "\n".join(f"    {line}" for line in str(trace).rstrip().splitlines()[-12:])
    return text
