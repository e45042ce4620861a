"""The comparison to files."""

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from amp_sweep import record
from analysis import markup, pivot, texts
from analysis.answer import Answer
from analysis.comparison import FIGURES, Cell, Comparison, Table
from analysis.pivot import Pivot
from analysis.verdicts import Effect

# Format -> the files that it makes of a comparison.
FORMATS = {
    "csv": ("cells.csv", "comparison.csv"),
    "parquet": ("cells.parquet",),
    "md": ("comparison.md",),
    "tex": ("comparison.tex",),
    "html": ("comparison.html",),
}
# Columns of a figure against the baseline: `<figure>_<what>`; a ratio, for accuracy a difference.
JUDGED = ("images_per_s", "train_time_s", "memory", "test_accuracy")
EFFECT = ("effect", "effect_low", "effect_high", "effect_p", "verdict", "no_verdict")

DEFAULT_FORMATS = ("csv", "md", "tex")
PIVOT_NAME = "pivot"


class MissingPackage(Exception):
    """A format needs a package that is not installed."""


def check_formats(formats: Sequence[str]) -> None:
    """Raises MissingPackage before any work where a format cannot be written."""
    if "parquet" in formats and importlib.util.find_spec("pyarrow") is None:
        raise MissingPackage("parquet needs pyarrow: pip install pyarrow")


def write(
    out: Path,
    frame: pd.DataFrame,
    comparison: Comparison,
    found: Answer,
    problems: Sequence[str],
    command: str,
    formats: Sequence[str] = DEFAULT_FORMATS,
) -> list[Path]:
    """Write the tables into the folder `out`, made when missing; returns the files.

    Each file is replaced as a whole. Raises OSError where that is not possible.
    """
    out.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], str | pd.DataFrame]] = {
        "cells.csv": lambda: _csv(frame),
        "comparison.csv": lambda: _csv(long_form(comparison)),
        "cells.parquet": lambda: frame,
        "comparison.md": lambda: markup.markdown(comparison, found, problems, command),
        "comparison.tex": lambda: markup.latex(comparison, found, command),
        "comparison.html": lambda: markup.html(comparison, found, problems, command),
    }
    names = [name for each in FORMATS if each in formats for name in FORMATS[each]]
    return [_write(out / name, makers[name]()) for name in names]


def write_pivots(
    out: Path, pivots: Sequence[Pivot], command: str, formats: Sequence[str] = DEFAULT_FORMATS
) -> list[Path]:
    """Write pivots as `pivot.<format>` into the folder `out`; returns the files. Raises OSError."""
    out.mkdir(parents=True, exist_ok=True)
    makers: dict[str, Callable[[], str | pd.DataFrame]] = {
        "csv": lambda: _csv(pivot.long_form(pivots)),
        "parquet": lambda: pivot.long_form(pivots),
        "md": lambda: markup.markdown_pivots(pivots, command),
        "tex": lambda: markup.latex_pivots(pivots, command),
        "html": lambda: markup.html_pivots(pivots, command),
    }
    return [
        _write(out / f"{PIVOT_NAME}.{each}", makers[each]()) for each in FORMATS if each in formats
    ]


def _write(path: Path, content: str | pd.DataFrame) -> Path:
    """Replace a file by text, or by a table as Parquet."""
    if isinstance(content, str):
        record.write_atomic(path, content)
    else:
        temporary = path.with_name(f".{path.name}.tmp")
        content.to_parquet(temporary, index=False)
        temporary.replace(path)
    return path


def _csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, lineterminator="\n")


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
    floats = [f"{name}_{what}" for name in FIGURES for what in ("mean", "sd", "low", "high")]
    floats += [f"{name}_{what}" for name in JUDGED for what in EFFECT[:4]]
    return pd.DataFrame(rows).astype({**types, **dict.fromkeys(["speedup", *floats], "Float64")})


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
        interval = figure.interval
        row |= {f"{name}_mean": figure.mean, f"{name}_sd": figure.sd}
        row |= {f"{name}_low": interval.low if interval else None}
        row |= {f"{name}_high": interval.high if interval else None}
    for name in JUDGED:
        found = cell.effects.get(table.memory if name == "memory" else name)
        row |= dict(zip((f"{name}_{what}" for what in EFFECT), _effect(found), strict=True))
    row["diagnosis"] = cell.diagnosis or None
    row["notes"] = " | ".join(table.footnotes[number - 1] for number in cell.footnotes) or None
    return row


def _effect(found: Effect | None) -> list[Any]:
    """The values of the columns `EFFECT`."""
    if found is None:
        return [None] * len(EFFECT)
    interval = found.interval
    ends = (interval.low, interval.high) if interval else (None, None)
    why = found.reason or None
    return [found.estimate, *ends, found.p_adjusted, found.verdict or None, why]
