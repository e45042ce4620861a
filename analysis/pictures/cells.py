"""What the pictures show of a table: its cells with their runs, intervals and curves."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from amp_sweep import record
from amp_sweep.record import RecordError
from analysis import texts
from analysis.comparison import Cell, Comparison, figure_of
from analysis.frame import rows_of
from analysis.statistics import Figure
from analysis.values import BEYOND, clean, is_number, items

Row = dict[str, Any]

# The marks of disturbed times, as `Cell.flaw_names` has them.
MARKS = {
    "contended": "other processes used the device, so its time and speed decide nothing",
    "paused": "halted for a while as it trained, so its time and speed decide nothing",
    "stitched": "interrupted and resumed, so its time and speed decide nothing",
    "mixed hardware": "on unlike machines or devices, so its time and speed decide nothing",
}


# A difference of two measurements may be below zero.
SIGNED = frozenset({"memory_unattributed_mib", "memory_workspace_mib", "share_gaps"})
AT_MOST = {"test_accuracy": 1.0}
EPOCH_METRICS = ("train_loss", "test_accuracy", "train_time_s")


def plausible(metric: str, value: float) -> bool:
    """Whether a figure can be what it is called: finite, mostly not below zero, not absurd."""
    low = -BEYOND if metric in SIGNED else 0.0
    return low <= value <= AT_MOST.get(metric, BEYOND)


@dataclass(frozen=True)
class Epoch:
    """One epoch of a run, as its record has it."""

    epoch: int
    seconds: float  # training time until its end; NaN where an epoch has none
    value: float


@dataclass(frozen=True)
class Drawn:
    """A cell with its runs."""

    cell: Cell
    rows: tuple[Row, ...]

    @property
    def name(self) -> str:
        """`none x fp32`."""
        return f"{self.cell.parallel} x {self.cell.precision}"

    @property
    def state(self) -> str:
        """Empty for a cell with figures, else `FAILED 2, PENDING 1` or `-`."""
        return " ".join(texts.status(self.cell.statuses))

    @property
    def lost(self) -> str:
        """What became of the other runs of a cell that has figures: `FAILED 1`."""
        if not self.cell.completed:
            return ""
        statuses = [name for name in reversed(record.STATUSES) if name != record.COMPLETED]
        counts = {name: self.cell.statuses[name] for name in statuses}
        return ", ".join(f"{name.upper()} {n}" for name, n in counts.items() if n)

    @property
    def done(self) -> list[Row]:
        """Its completed runs."""
        return [row for row in self.rows if row["status"] == record.COMPLETED]

    def figure(self, metric: str) -> Figure:
        """One metric (a column of the tidy table) of each completed run, where it is plausible."""
        known = [row for row in self.done if row.get(metric) is not None]
        return figure_of([row for row in known if plausible(metric, row[metric])], metric)

    def mean(self, metric: str) -> float | None:
        """Its mean over those runs; None where there is none."""
        return self.figure(metric).mean

    @cached_property
    def _histories(self) -> list[tuple[Row, list[dict[str, Any]]]]:
        """Its completed runs, or all where none is completed, with their epochs."""
        return [(row, _history(row)) for row in self.done or self.rows]

    def epochs(self, metric: str) -> Iterator[Epoch]:
        """The epochs of those runs that have a metric."""
        for _, rows in self._histories:
            seconds = 0.0
            for number, each in enumerate(rows, 1):
                seconds += _number(each, "train_time_s")
                if math.isfinite(value := _number(each, metric)):
                    yield Epoch(number, seconds, value)

    def not_drawn(self, metrics: Iterable[str]) -> Iterator[str]:
        """Figures that no training can have, of its runs and of their epochs, in words."""
        for row in self.rows:
            for metric in metrics:
                value = row.get(metric)
                if value is not None and not plausible(metric, value):
                    yield f"{self.name}, seed {row['seed']}: {metric} is {value:g}"
        for row, rows in self._histories:
            for number, each in enumerate(rows, 1):
                for metric in EPOCH_METRICS:
                    if each.get(metric) is not None and math.isnan(_number(each, metric)):
                        what = f"{metric} of epoch {number} is {clean(str(each[metric]))[:40]}"
                        yield f"{self.name}, seed {row['seed']}: {what}"


def disturbed(cells: Sequence[Drawn]) -> list[str]:
    """What the marks of cells mean whose times and speeds have no verdict: a sentence per mark."""
    marks = dict.fromkeys(mark for each in cells for mark in each.cell.flaw_names)
    return [f"{mark.capitalize()}: {MARKS[mark]}." for mark in marks]


def of_tables(comparison: Comparison, frame: pd.DataFrame) -> list[list[Drawn]]:
    """Each table's cells in its order, every one with its runs, rows of `frame`."""
    rows = {row["run_dir"]: row for row in rows_of(frame)}
    return [
        [
            Drawn(cell, tuple(rows[name] for name in cell.run_dirs if name in rows))
            for cell in table.cells.values()
        ]
        for table in comparison.tables
    ]


def per_device(row: Row, metric: str) -> list[float]:
    """A metric that has a value per device; empty where it was not recorded."""
    found = []
    for text in items(row.get(f"{metric}_each")):
        try:
            found.append(float(text))
        except ValueError:  # null
            return []
    return found if all(plausible(metric, value) for value in found) else []


def _history(row: Row) -> list[dict[str, Any]]:
    """The epochs of a run's record; none where it cannot be read any more."""
    try:
        return [
            each for path in record.find(Path(row["run_dir"])) for each in record.read(path).epochs
        ]
    except RecordError:
        return []


def _number(epoch: dict[str, Any], metric: str) -> float:
    """A figure of an epoch; NaN where it has none that is plausible."""
    value: Any = epoch.get(metric)
    return float(value) if is_number(value) and plausible(metric, value) else math.nan
