"""The comparison to the screen and to files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from amp_sweep import record
from analysis import markup, terminal, texts
from analysis.compare import FIGURES, Cell, Comparison, Table

CELLS, LONG, MARKDOWN, LATEX = "cells.csv", "comparison.csv", "comparison.md", "comparison.tex"


def show(comparison: Comparison, problems: Sequence[str], to: Console | None = None) -> None:
    """Print every table."""
    terminal.show(comparison, problems, to or terminal.console())


def write(
    out: Path, frame: pd.DataFrame, comparison: Comparison, problems: Sequence[str], command: str
) -> list[Path]:
    """Write the tables into the folder `out`, made when missing; returns the files.

    Each file is replaced as a whole. Raises OSError where that is not possible.
    """
    out.mkdir(parents=True, exist_ok=True)
    contents = {
        CELLS: frame.to_csv(index=False, lineterminator="\n"),
        LONG: long_form(comparison).to_csv(index=False, lineterminator="\n"),
        MARKDOWN: markup.markdown(comparison, problems, command),
        LATEX: markup.latex(comparison, command),
    }
    for name, text in contents.items():
        record.write_atomic(out / name, text)
    return [out / name for name in contents]


def long_form(comparison: Comparison) -> pd.DataFrame:
    """A row per cell of every table, with the swept axes and whatever tells tables apart."""
    fields = list(dict.fromkeys(name for table in comparison.tables for name in table.fields))
    rows = [
        {
            "table": table.title,
            **{name: table.fields.get(name) for name in fields},
            **_long_row(table, cell),
        }
        for table in comparison.tables
        for cell in table.cells.values()
    ]
    types = dict.fromkeys(("devices", "runs", "n"), "Int64")
    types |= {f"{name}_{what}": "Float64" for name in FIGURES for what in ("mean", "sd")}
    return pd.DataFrame(rows).astype({**types, "speedup": "Float64"})


def _long_row(table: Table, cell: Cell) -> dict[str, Any]:
    statuses = [name for name in reversed(record.STATUSES) if cell.statuses[name]]
    told = "completed" if cell.completed else ", ".join(statuses) or texts.NOT_ASKED
    baseline = table.baseline
    row: dict[str, Any] = {
        "parallel": cell.parallel,
        "precision": cell.precision,
        "status": told,
        "runs": cell.runs,
        "n": cell.completed,
        "devices": cell.devices,
        "speedup": cell.speedup,
        "speedup_over": f"{baseline.parallel},{baseline.precision}" if baseline else None,
        "no_speedup": cell.no_speedup or None,
    }
    for name in FIGURES:
        figure = cell.figures[name]
        row |= {f"{name}_mean": figure.mean, f"{name}_sd": figure.sd}
    row["notes"] = " | ".join(table.footnotes[number - 1] for number in cell.footnotes) or None
    return row
