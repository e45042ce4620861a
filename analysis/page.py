"""What `report.html` shows, as plain data: tables of entries, runs with their details.

Nothing here is HTML. The template escapes all of it.
"""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from amp_sweep import record
from amp_sweep.record import Record, RecordError
from analysis import answer, article, pivot, texts
from analysis.answer import Answer, TableAnswer
from analysis.compare import Cell, Comparison, Table
from analysis.frame import rows_of
from analysis.texts import Grid

Row = dict[str, Any]

# Beyond these a page would be too large to open; what is left out is counted on it.
MOST_ROWS, MOST_DETAILS, MOST_EPOCHS = 2000, 300, 200


@dataclass(frozen=True)
class Entry:
    """One place of a table."""

    text: str
    href: str = ""  # inside the page, or relative to it
    sort: float | str | None = None  # what it is sorted by, where that is not its text
    state: str = ""  # a status, for its colour


@dataclass(frozen=True)
class Sheet:
    """A table: `left` columns of names, then figures."""

    id: str
    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    left: int = 2
    sortable: bool = True  # and with a filter, where it is long
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """Names with values, in the details of a run."""

    title: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Run:
    """One run, to be opened."""

    id: str
    title: str
    state: str
    href: str  # of its record
    files: tuple[tuple[str, str], ...]  # name and address of what else lies beside it
    message: str  # why it is not completed
    traceback: str
    notes: tuple[str, ...]
    sections: tuple[Section, ...]
    epochs: Sheet | None


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
        return inside if run_dir in detailed else link(Path(run_dir) / "record.json", out)

    parts = []
    for index, (table, said) in enumerate(zip(comparison.tables, found.tables, strict=True), 1):
        groups = tuple(
            Group(
                f"cell-{index}-{place}",
                f"{cell.parallel} x {cell.precision}",
                tuple(
                    _run(by_dir[name], f"run-{numbers[name]}", out)
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
        runs=_runs_sheet(rows[:MOST_ROWS], comparison, address),
        warnings=(*comparison.warnings, *problems),
        provenance=tuple(_provenance(rows)),
        left_out=tuple(left_out),
    )


def link(target: Path, out: Path) -> str:
    """The address of a file relative to the folder `out`, fit for an attribute."""
    relative = os.path.relpath(target.resolve(), out.resolve())
    return quote(Path(relative).as_posix().encode("utf-8", "surrogateescape"))


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
        sheets=tuple(_sheets(table, said, index, to_runs)),
        groups=groups,
    )


def _sheets(
    table: Table, said: TableAnswer, index: int, to_runs: Callable[[Cell], str]
) -> Iterable[Sheet]:
    """Every table of one part."""
    runs_of = {at: to_runs(cell) for at, cell in table.cells.items()}
    notes = [f"{n}  {text}" for n, text in enumerate(table.footnotes, 1)]
    yield _cells_sheet(table, index, to_runs, (*notes, *texts.legend(table)))
    if (grid := answer.claims_grid(said)) is not None:
        yield _plain(f"claims-{index}", "The article's claims", grid, (article.PROVENANCE,), {})
    if (grid := texts.verdict_grid(table)) is not None:
        told = (*texts.unjudged(table), *texts.verdict_legend(table))
        yield _plain(f"verdicts-{index}", f"Against {texts.over(table)}", grid, told, runs_of)
    if (grid := texts.article_grid(table)) is not None:
        yield _plain(f"article-{index}", "Beside the article", grid, (article.PROVENANCE,), runs_of)
    if len(table.cells) > 1:
        for place, metric in enumerate(texts.matrices(table), 1):
            yield _matrix(table, metric, f"matrix-{index}-{place}", to_runs)


def _cells_sheet(
    table: Table, index: int, to_runs: Callable[[Cell], str], notes: tuple[str, ...]
) -> Sheet:
    """A row per cell; each figure leads to the runs that it comes from."""
    grid = texts.cells_grid(table)
    columns = {texts.heading(name): name for name in texts.HEADINGS}
    rows = []
    for cell, parts in zip(table.cells.values(), grid.rows, strict=True):
        state = "" if cell.completed else max(cell.statuses, default="")
        row = []
        for place, (heading, words) in enumerate(zip(grid.headings, parts, strict=True)):
            text = " ".join(words)
            figure = cell.figures.get(columns.get(heading, ""))
            value = cell.speedup if heading == texts.SPEEDUP else figure.mean if figure else None
            is_status = bool(state) and heading == "time"
            href = to_runs(cell) if text and (value is not None or is_status) else ""
            order = place if place >= grid.left and value is not None else None
            row.append(Entry(text, href, value if order else None, state if is_status else ""))
        rows.append(tuple(row))
    return Sheet(f"cells-{index}", "Cells", tuple(grid.headings), tuple(rows), notes=notes)


def _plain(
    id: str, caption: str, grid: Grid, notes: Sequence[str], runs_of: dict[tuple[str, str], str]
) -> Sheet:
    """A table of text; the figures of a row that begins with a cell's names lead to its runs."""
    rows = []
    for words in grid.rows:
        told = [("\n" if grid.stacked else " ").join(parts) for parts in words]
        names = [" ".join(parts) for parts in words[:2]]
        href = runs_of.get((names[0], names[1]), "")
        rows.append(tuple(Entry(t, href if i >= grid.left else "") for i, t in enumerate(told)))
    return Sheet(id, caption, tuple(grid.headings), tuple(rows), grid.left, notes=tuple(notes))


def _matrix(table: Table, metric: str, id: str, to_runs: Callable[[Cell], str]) -> Sheet:
    """Parallelism by precision of one figure."""
    found = pivot.of_table(table, metric)
    rows = []
    for parallel in found.rows:
        row = [Entry(parallel)]
        for precision in found.columns:
            entry = found.entries[parallel, precision]
            state = "" if entry.value is not None else entry.status
            cell = table.cells[parallel, precision]
            href = to_runs(cell) if cell.runs else ""
            row.append(Entry(" ".join(entry.parts), href, entry.value, state))
        rows.append(tuple(row))
    headings = (found.row_axis, *found.columns)
    return Sheet(id, found.heading, headings, tuple(rows), left=1, sortable=len(rows) > 3)


def _runs_sheet(
    rows: Sequence[Row], comparison: Comparison, address: Callable[[str], str]
) -> Sheet:
    """A row per run."""
    memory = next((table.memory for table in comparison.tables), "peak_rss_mib")
    metrics = ("train_time_s", "images_per_s", memory, "test_accuracy")
    several = len({row["name"] for row in rows}) > 1
    headings = ["parallel", "precision", "seed", "status", *map(texts.heading, metrics), "ended"]
    found = []
    for row in rows:
        href = address(row["run_dir"])
        status = row["status"] or "?"
        entries = [Entry(row["parallel"] or "?"), Entry(row["precision"] or "?")]
        entries.append(Entry(_text(row["seed"]), href, row["seed"]))
        state = "" if status == record.COMPLETED else status
        entries.append(Entry(status if not state else status.upper(), href, state=state))
        for name in metrics:
            value = row.get(name)
            text = "" if value is None else texts.number(name, value)
            entries.append(Entry(text, href if text else "", value))
        entries.append(Entry((row["ended_at"] or "").replace("T", " ")))
        found.append((Entry(row["name"]), *entries) if several else tuple(entries))
    headings = ["sweep", *headings] if several else headings
    return Sheet("runs", "Runs", tuple(headings), tuple(found), left=3 if several else 2)


def _run(row: Row, id: str, out: Path) -> Run:
    """One run with everything that its record says."""
    folder = Path(row["run_dir"])
    title = f"{row['parallel']} x {row['precision']}, seed {_text(row['seed'])}: {row['status']}"
    files = ("config.yaml", "epochs.csv", "steps.csv", "train.log")
    there = tuple((name, link(folder / name, out)) for name in files if (folder / name).is_file())
    state = "" if row["status"] == record.COMPLETED else row["status"]
    try:
        found = record.read(folder / "record.json")
    except RecordError as unreadable:
        missing = (Section("Not readable any more", (("record", str(unreadable)),)),)
        return Run(
            id, title, state, link(folder / "record.json", out), there, "", "", (), missing, None
        )
    error = found.error or {}
    told = [str(error[name]) for name in ("type", "message") if error.get(name)]
    return Run(
        id=id,
        title=title,
        state=state,
        href=link(folder / "record.json", out),
        files=there,
        message=": ".join(told),
        traceback=str(error.get("traceback") or ""),
        notes=tuple(map(_text, found.notes)),
        sections=tuple(_sections(found)),
        epochs=_epochs(found, f"{id}-epochs"),
    )


def _sections(found: Record) -> Iterable[Section]:
    titles = {"metrics": "Figures", "effective": "What really ran", "environment": "Environment"}
    for name, title in titles.items():
        if pairs := tuple((key, _text(value)) for key, value in getattr(found, name).items()):
            yield Section(title, pairs)
    asked = record.flatten(found.config)
    if found.overrides:
        yield Section(
            "Overrides", tuple((f"{n}", _text(o)) for n, o in enumerate(found.overrides, 1))
        )
    if asked:
        yield Section("Settings", tuple((key, _text(value)) for key, value in asked.items()))


def _epochs(found: Record, id: str) -> Sheet | None:
    """A row per epoch, the last ones where there are many."""
    if not found.epochs:
        return None
    names = tuple(dict.fromkeys(name for epoch in found.epochs for name in epoch))
    rows = tuple(
        tuple(Entry(_text(epoch.get(name)), sort=_number(epoch.get(name))) for name in names)
        for epoch in found.epochs[-MOST_EPOCHS:]
    )
    left_out = len(found.epochs) - len(rows)
    notes = (f"{left_out} earlier epochs: see the record",) if left_out else ()
    return Sheet(id, "Epochs", names, rows, left=0, sortable=False, notes=notes)


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
        values = [_text(row[column]) for row in rows if row.get(column) is not None]
        counts = {value: values.count(value) for value in dict.fromkeys(values)}
        if len(counts) == 1:
            yield title, values[0]
        elif counts:
            yield title, ", ".join(f"{value} ({n} runs)" for value, n in counts.items())
    dirty = sum(row.get("git_dirty") is True for row in rows)
    if dirty:
        yield "uncommitted changes", f"in {dirty} runs"


def _text(value: Any) -> str:
    """A JSON value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items()) or "-"
    return str(value)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
