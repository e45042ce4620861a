"""From the tidy table to comparisons: one table per comparison key, a cell per
parallelism x precision, over its seeds.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from amp_sweep import record
from analysis import article, footnotes, key, labels
from analysis.load import rows_of, swept_axes

Row = dict[str, Any]

BASELINE = ("none", "fp32")
PARALLEL_ORDER = ("none", "dp", "ddp")
PRECISION_ORDER = ("fp32", "autocast", "scaler")

# Figures that are compared. Memory is one of the last two, by device.
FIGURES = (
    "train_time_s",
    "images_per_s",
    "test_accuracy",
    "data_wait_frac",
    "peak_allocated_mib",
    "peak_rss_mib",
)


@dataclass(frozen=True)
class Figure:
    """One figure of a cell: (seed, value) of each completed run that has it."""

    by_seed: tuple[tuple[int | None, float], ...] = ()

    @property
    def n(self) -> int:
        """Number of values."""
        return len(self.by_seed)

    @property
    def mean(self) -> float | None:
        """Mean over the seeds; None without a value."""
        return math.fsum(value for _, value in self.by_seed) / self.n if self.n else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation (n - 1); None below two values."""
        mean = self.mean
        if mean is None or self.n < 2:
            return None
        return math.sqrt(math.fsum((v - mean) ** 2 for _, v in self.by_seed) / (self.n - 1))


@dataclass(frozen=True)
class Cell:
    """One parallelism x precision of a table."""

    parallel: str
    precision: str
    names: tuple[str, str]  # parallelism and precision without what tells variants apart
    statuses: Counter[str] = field(default_factory=Counter)  # empty: nobody asked for it
    devices: int | None = None  # on a CPU: processes
    figures: dict[str, Figure] = field(default_factory=dict)
    speedup: float | None = None  # ratio of mean images/s to the baseline's
    no_speedup: str = ""  # why there is none
    footnotes: tuple[int, ...] = ()  # numbers from 1, of `Table.footnotes`
    published: article.Published | None = None

    @property
    def runs(self) -> int:
        """How many runs were asked for: one per seed."""
        return self.statuses.total()

    @property
    def completed(self) -> int:
        """How many of them are completed."""
        return self.statuses[record.COMPLETED]


@dataclass(frozen=True)
class Table:
    """What may be compared with each other."""

    title: str
    settings: str
    hardware: str
    key: key.Key
    fields: dict[
        str, str
    ]  # model, data, swept axes and whatever tells tables apart, with its value here
    memory: str  # the figure that tells the peak memory
    parallels: tuple[str, ...]
    precisions: tuple[str, ...]
    cells: dict[tuple[str, str], Cell]  # the full product, by parallelism
    footnotes: tuple[str, ...]
    missing: tuple[str, ...]  # a line per run that has ended without completing, or still runs
    baseline: Cell | None = None
    unrelated: str = ""  # why no cell has a speed-up

    @property
    def seeds(self) -> int:
        """The largest number of runs of one cell."""
        return max((cell.runs for cell in self.cells.values()), default=0)


@dataclass(frozen=True)
class Comparison:
    """Every table of a load, and what differs between its runs."""

    tables: tuple[Table, ...]
    warnings: tuple[str, ...]


class UnknownBaseline(ValueError):
    """The baseline asked for is in none of the tables."""


def compare(frame: pd.DataFrame, baseline: tuple[str, str] | None = None) -> Comparison:
    """Group the runs by comparison key and relate each cell to the baseline of its table.

    `baseline` is (parallelism, precision) as the tables label them; None is none x fp32.
    Raises UnknownBaseline when it is given and no table has such a cell.
    """
    rows = rows_of(frame)
    # Not pandas' groupby: it drops nulls, and with them runs that never started.
    members: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    keys = key.keys(rows)
    for index, found in enumerate(keys):
        members[tuple(found.items())].append(index)
    groups = list(members.values())
    axes = _axes(rows, groups)
    trained = [labels.what([rows[i] for i in group]) for group in groups]
    apart = labels.told_apart(trained, axes, [keys[group[0]] for group in groups])
    tables = [
        _table(
            [rows[i] for i in group],
            keys[group[0]],
            title=labels.title(trained[n], apart[n]),
            fields={**trained[n], **axes[n], **apart[n]},
        )
        for n, group in enumerate(groups)
    ]
    tables.sort(key=lambda table: labels.natural(table.title))
    seen: Counter[str] = Counter()
    for index, table in enumerate(tables):
        seen[table.title] += 1
        if (again := seen[table.title]) > 1:
            tables[index] = replace(table, title=f"{table.title} ({again})")
    warnings = labels.differing(rows)
    for group, name in zip(groups, trained, strict=True):
        if len({rows[i]["data_digest"] for i in group} - {None}) > 1:
            warnings.append(f"runs on {name['data']} saw different images (data_digest)")
    return Comparison(tuple(_with_speedups(tables, baseline)), tuple(warnings))


def _axes(rows: Sequence[Row], groups: Sequence[Sequence[int]]) -> list[dict[str, str]]:
    """The swept axes of each group of runs, without those that its cells show."""
    shown = (*key.COMPARED, "seed")
    found: list[dict[str, str]] = [{} for _ in groups]
    for name, values in swept_axes([row["overrides"] for row in rows]).items():
        if name.split(".")[0] in shown:
            continue
        for axes, group in zip(found, groups, strict=True):
            here = {values[i] or rows[i].get(f"config.{name}") or "null" for i in group}
            axes[name] = ", ".join(sorted(here, key=labels.natural))
    return found


def _table(rows: Sequence[Row], found: key.Key, *, title: str, fields: dict[str, str]) -> Table:
    """One table, without speed-ups yet."""
    members: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row, label in zip(rows, labels.variants(rows), strict=True):
        members[label].append(row)
    parallels = _ordered({p: m[0]["parallel"] for (p, _), m in members.items()}, PARALLEL_ORDER)
    precisions = _ordered({q: m[0]["precision"] for (_, q), m in members.items()}, PRECISION_ORDER)
    notes: dict[str, int] = {}  # text -> number
    cells = {}
    for at in ((p, q) for p in parallels for q in precisions):
        texts = footnotes.of_cell(members.get(at, []), rows)
        numbers = tuple(notes.setdefault(text, len(notes) + 1) for text in texts)
        cells[at] = _cell(at, members.get(at, []), numbers)
    missing = [
        f"{p} x {q}, seed {row['seed']}: {row['status'].upper()}"
        f"{', ' if why else ''}{why} [{row['run_dir']}]"
        for (p, q), cell in cells.items()
        for row in members.get((p, q), [])
        if row["status"] != record.COMPLETED
        for why in [footnotes.of_missing(row)]
        # A pending cell says so in its row, unless other seeds of it are done.
        if why or row["status"] != record.PENDING or cell.figures["images_per_s"].n
    ]
    on_device = any(cell.figures["peak_allocated_mib"].n for cell in cells.values())
    return Table(
        title=title,
        settings=labels.settings(found),
        hardware=labels.hardware(found, rows),
        key=found,
        fields=fields,
        memory="peak_allocated_mib" if on_device else "peak_rss_mib",
        parallels=parallels,
        precisions=precisions,
        cells=cells,
        footnotes=tuple(notes),
        missing=tuple(missing),
    )


def _ordered(names: dict[str, str | None], order: Sequence[str]) -> tuple[str, ...]:
    """Labels in the order of a matrix, given the plain name of each."""
    place = {name: i for i, name in enumerate(order)}
    return tuple(
        sorted(
            names,
            key=lambda label: (place.get(names[label] or "", len(order)), labels.natural(label)),
        )
    )


def _cell(at: tuple[str, str], rows: Sequence[Row], numbers: tuple[int, ...]) -> Cell:
    """One cell over its runs; only completed ones give figures."""
    done = sorted(
        (row for row in rows if row["status"] == record.COMPLETED),
        key=lambda row: row["seed"] if row["seed"] is not None else -1,
    )
    return Cell(
        parallel=at[0],
        precision=at[1],
        names=(rows[0]["parallel"] or "?", rows[0]["precision"] or "?") if rows else at,
        statuses=Counter(row["status"] for row in rows),
        devices=max((row["devices"] for row in done if row["devices"]), default=None),
        figures={
            name: Figure(tuple((r["seed"], r[name]) for r in done if r[name] is not None))
            for name in FIGURES
        },
        footnotes=numbers,
        published=next((p for row in rows if (p := article.published(row))), None),
    )


def _with_speedups(tables: Sequence[Table], asked: tuple[str, str] | None) -> list[Table]:
    """The tables with each completed cell's speed-up, or the reason why it has none."""
    wanted = asked or BASELINE
    found = [_baseline(table, wanted) for table in tables]
    if asked and all(cell is None for cell, _ in found):
        there = dict.fromkeys(f"{p},{q}" for table in tables for p, q in table.cells)
        raise UnknownBaseline(f"no cell {','.join(asked)}; there are: {'  '.join(there)}")
    usable = [table for table, (_, why) in zip(tables, found, strict=True) if not why]
    related = []
    for table, (cell, why) in zip(tables, found, strict=True):
        if cell is None and usable:
            why += f"; it was with {_difference(table.key, usable[0].key)}"
        cells = {at: _related(other, cell, why) for at, other in table.cells.items()}
        related.append(replace(table, cells=cells, baseline=None if why else cell, unrelated=why))
    return related


def _baseline(table: Table, wanted: tuple[str, str]) -> tuple[Cell | None, str]:
    """The baseline cell of a table if it has one, and why it cannot serve, if so."""
    name = " x ".join(wanted)
    asked = [cell for cell in table.cells.values() if cell.runs]
    exact = [cell for cell in asked if (cell.parallel, cell.precision) == wanted]
    matching = exact or [cell for cell in asked if cell.names == wanted]
    if not matching:
        return None, f"the baseline {name} was not run with these settings"
    if len(matching) > 1:
        told = " or ".join(f"{cell.parallel},{cell.precision}" for cell in matching)
        return matching[0], f"the baseline {name} is ambiguous; choose --baseline {told}"
    if not matching[0].completed:
        status = ", ".join(status.upper() for status in matching[0].statuses)
        return matching[0], f"the baseline {name} is {status}"
    if not matching[0].figures["images_per_s"].n:
        return matching[0], f"the baseline {name} has no images_per_s"
    return matching[0], ""


def _difference(here: key.Key, there: key.Key) -> str:
    """In which fields another table differs, in words."""
    told = [
        f"{name}={theirs or 'null'} (here {ours or 'null'})"
        for name, (ours, theirs) in key.differences(here, there).items()
    ]
    return ", ".join(told[:3]) + (f" and {len(told) - 3} more" if len(told) > 3 else "")


def _related(cell: Cell, baseline: Cell | None, why: str) -> Cell:
    """The cell with its speed-up: its mean images/s over the baseline's."""
    if not cell.runs:
        return replace(cell, no_speedup="not asked for")
    if not cell.completed:
        return replace(cell, no_speedup="not completed")
    if why or baseline is None:
        return replace(cell, no_speedup=why)
    ours, theirs = (each.figures["images_per_s"].mean for each in (cell, baseline))
    if ours is None or not theirs:
        return replace(cell, no_speedup="no images_per_s")
    return replace(cell, speedup=ours / theirs)
