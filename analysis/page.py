"""What `report.html` shows, as plain data: tables of entries, runs with their details.

Nothing here is HTML. The template escapes all of it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from amp_sweep import record
from analysis import answer, details, sheets, texts
from analysis.answer import Answer, TableAnswer
from analysis.comparison import Cell, Comparison, Table
from analysis.details import Run
from analysis.frame import rows_of
from analysis.sheets import Sheet

Row = dict[str, Any]

# Beyond these a page would be too large to open; what is left out is counted on it.
MOST_ROWS, MOST_DETAILS = 2000, 300


@dataclass(frozen=True)
class Group:
    """The runs of one cell."""

    id: str
    title: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Part:
    """One table of the comparison with its answer."""

    id: str
    title: str
    counted: str
    settings: str
    hardware: str
    sentences: tuple[tuple[str, str], ...]
    reasons: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]
    missing: tuple[str, ...]
    sheets: tuple[Sheet, ...]
    groups: tuple[Group, ...]


@dataclass(frozen=True)
class Page:
    """The whole report, without its pictures."""

    title: str
    parts: tuple[Part, ...]
    runs: Sheet
    warnings: tuple[str, ...]
    provenance: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]


def build(
    comparison: Comparison,
    found: Answer,
    frame: pd.DataFrame,
    problems: Sequence[str],
    out: Path,
) -> Page:
    """Everything that the report says; links are relative to the folder `out`."""
    by_dir = {row["run_dir"]: row for row in rows_of(frame)}
    cells = (cell for table in comparison.tables for cell in table.cells.values())
    rows = [by_dir[name] for cell in cells for name in cell.run_dirs if name in by_dir]
    numbers = {row["run_dir"]: number for number, row in enumerate(rows, 1)}
    detailed = {row["run_dir"] for row in rows[:MOST_DETAILS]}

    def address(run_dir: str) -> str:
        inside = f"#run-{numbers[run_dir]}"
        return inside if run_dir in detailed else details.link(Path(run_dir) / "record.json", out)

    parts = []
    for index, (table, said) in enumerate(zip(comparison.tables, found.tables, strict=True), 1):
        groups = tuple(
            Group(
                f"cell-{index}-{place}",
                f"{cell.parallel} x {cell.precision}",
                tuple(
                    details.of_run(by_dir[name], f"run-{numbers[name]}", out)
                    for name in cell.run_dirs
                    if name in detailed
                ),
            )
            for place, cell in enumerate(table.cells.values(), 1)
            if detailed.intersection(cell.run_dirs)
        )
        parts.append(_part(table, said, index, groups, address))
    left_out = []
    if len(rows) > MOST_DETAILS:
        left_out.append(f"details of {len(rows) - MOST_DETAILS} further runs: see their records")
    if len(rows) > MOST_ROWS:
        left_out.append(f"{len(rows) - MOST_ROWS} further runs: see cells.csv")
    names = list(dict.fromkeys(row["name"] for row in rows))
    return Page(
        title=", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else ""),
        parts=tuple(parts),
        runs=sheets.of_runs(rows[:MOST_ROWS], comparison, address),
        warnings=(*comparison.warnings, *problems),
        provenance=tuple(_provenance(rows)),
        left_out=tuple(left_out),
    )


def _part(
    table: Table,
    said: TableAnswer,
    index: int,
    groups: tuple[Group, ...],
    address: Callable[[str], str],
) -> Part:
    there = {group.title: group.id for group in groups}

    def to_runs(cell: Cell) -> str:
        if len(cell.run_dirs) == 1:
            return address(cell.run_dirs[0])
        group = there.get(f"{cell.parallel} x {cell.precision}")
        return f"#{group}" if group else ""

    return Part(
        id=f"table-{index}",
        title=table.title,
        counted=texts.counted([table]),
        settings=table.settings,
        hardware=table.hardware,
        sentences=tuple(answer.sentences(said)),
        reasons=tuple(answer.reasons(said)),
        remarks=said.remarks,
        missing=table.missing,
        sheets=tuple(sheets.of_table(table, said, index, to_runs)),
        groups=groups,
    )


def _provenance(rows: Sequence[Row]) -> Iterable[tuple[str, str]]:
    """Where the figures come from: each thing with its values and how many runs have them."""
    completed = sum(row["status"] == record.COMPLETED for row in rows)
    yield "runs", f"{len(rows)}, {completed} of them completed"
    started = sorted(row["started_at"] for row in rows if row["started_at"])
    ended = sorted(row["ended_at"] for row in rows if row["ended_at"])
    if started or ended:
        yield "made", f"{(started or ended)[0]} to {(ended or started)[-1]}"
    names = {
        "gpu": "GPU",
        "driver": "driver",
        "cuda": "CUDA",
        "cpu": "CPU",
        "cores": "cores",
        "hostname": "host",
        "python": "Python",
        "torch": "PyTorch",
        "torchvision": "torchvision",
        "git_commit": "commit",
    }
    for column, title in names.items():
        values = [sheets.in_words(row[column]) for row in rows if row.get(column) is not None]
        counts = {value: values.count(value) for value in dict.fromkeys(values)}
        if len(counts) == 1:
            yield title, values[0]
        elif counts:
            yield title, ", ".join(f"{value} ({n} runs)" for value, n in counts.items())
    dirty = sum(row.get("git_dirty") is True for row in rows)
    if dirty:
        yield "uncommitted changes", f"in {dirty} runs"
