"""The tables of `report.html` as plain data."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from amp_sweep import record
from analysis import answer, article, pivot, texts
from analysis.answer import TableAnswer
from analysis.comparison import Cell, Comparison, Table
from analysis.texts import Grid

Row = dict[str, Any]


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


def of_table(
    table: Table, said: TableAnswer, index: int, to_runs: Callable[[Cell], str]
) -> Iterable[Sheet]:
    """Every table of one part."""
    runs_of = {at: to_runs(cell) for at, cell in table.cells.items()}
    notes = [f"{n}  {text}" for n, text in enumerate(table.footnotes, 1)]
    yield _cells_sheet(table, index, to_runs, (*notes, *texts.legend(table)))
    if (grid := answer.claims_grid(said)) is not None:
        yield _plain(f"claims-{index}", "The article's claims", grid, (article.PROVENANCE,), {})
    if (grid := texts.verdict_grid(table)) is not None:
        below = (*texts.unjudged(table), *texts.verdict_legend(table))
        yield _plain(f"verdicts-{index}", f"Against {texts.over(table)}", grid, below, runs_of)
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
        state = "" if cell.completed else texts.worst(cell.statuses)
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


def of_runs(rows: Sequence[Row], comparison: Comparison, address: Callable[[str], str]) -> Sheet:
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
        entries.append(Entry(in_words(row["seed"]), href, row["seed"]))
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


def in_words(value: Any) -> str:
    """A JSON value as people read it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(map(in_words, value)) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {in_words(item)}" for key, item in value.items()) or "-"
    return str(value)
