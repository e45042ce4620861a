"""What the pictures show of a table: its cells with their runs, intervals and curves."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from amp_sweep import record
from amp_sweep.record import RecordError
from analysis import texts
from analysis.columns import items
from analysis.compare import Cell, Comparison
from analysis.frame import rows_of
from analysis.statistics import Figure

Row = dict[str, Any]

# The marks of disturbed times, as `Cell.flaw_names` has them.
MARKS = {
    "contended": "other processes used the device, so its time and speed decide nothing",
    "stitched": "interrupted and resumed, so its time and speed decide nothing",
    "mixed hardware": "on unlike machines or devices, so its time and speed decide nothing",
}


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

    def figure(self, metric: str) -> Figure:
        """One metric (a column of the tidy table) of each completed run that has it."""
        done = [row for row in self.rows if row["status"] == record.COMPLETED]
        return Figure(tuple((r["seed"], r[metric]) for r in done if r.get(metric) is not None))

    def mean(self, metric: str) -> float | None:
        """Its mean over those runs; None where there is none."""
        return self.figure(metric).mean

    @cached_property
    def _histories(self) -> list[list[dict[str, Any]]]:
        """The epochs of its completed runs, or of all where none is completed."""
        done = [row for row in self.rows if row["status"] == record.COMPLETED]
        return [_history(row) for row in done or self.rows]

    def epochs(self, metric: str) -> Iterator[Epoch]:
        """The epochs of those runs that have a metric."""
        for rows in self._histories:
            seconds = 0.0
            for number, each in enumerate(rows, 1):
                seconds += _number(each.get("train_time_s"))
                if math.isfinite(value := _number(each.get(metric))):
                    yield Epoch(number, seconds, value)


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
    return found


def _history(row: Row) -> list[dict[str, Any]]:
    """The epochs of a run's record; none where it cannot be read any more."""
    try:
        return [
            each for path in record.find(Path(row["run_dir"])) for each in record.read(path).epochs
        ]
    except RecordError:
        return []


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else math.nan
