"""Any figure over any two axes: a grid of values with their texts, spreads and statuses."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from amp_sweep import record
from analysis import alike, axes, key, labels, texts, verdicts
from analysis.alike import At
from analysis.comparison import (
    MEMORIES,
    PARALLEL_ORDER,
    PRECISION_ORDER,
    Cell,
    Comparison,
    Table,
    figure_of,
)
from analysis.frame import rows_of
from analysis.statistics import Figure, Interval
from analysis.texts import SPEEDUP
from analysis.values import clean
from analysis.verdicts import Effect

Row = dict[str, Any]

MEMORY = "memory"
# Names for figures that people type; `memory` is the table's own.
SHORT = {
    "time": "train_time_s",
    "images/s": "images_per_s",
    "speedup": SPEEDUP,
    "accuracy": "test_accuracy",
    "energy": "energy_j",
}

# Axes whose values say themselves what they are.
PLAIN = frozenset(
    {*key.COMPARED, axes.SWEEP, "model", "data", "device_name", "device_names", "gpu", "cpu"}
)


@dataclass(frozen=True)
class Entry:
    """One place of a pivot."""

    parts: tuple[str, ...]  # as printed: ("1.85x", "1.80 to 1.90"), ("FAILED",), ("-",)
    value: float | None = None  # mean over the runs; the ratio for a speed-up
    sd: float | None = None
    n: int = 0
    interval: Interval | None = None  # 95%; None below two runs
    status: str = ""  # "completed" where there is one, else its status; "" if not asked for
    verdict: str = ""  # against the table's baseline, where that is known
    run_dirs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pivot:
    """One grid; what differs beside its axes is in the title."""

    title: str
    metric: str  # column, or "speed-up"
    heading: str  # the metric with its unit, for people
    row_axis: str
    column_axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    entries: dict[tuple[str, str], Entry]  # the full product, (row, column)


def of_table(table: Table, metric: str) -> Pivot:
    """Parallelism x precision of one figure of a table (`comparison.FIGURES`, "speed-up",
    "memory", or a short name of `SHORT`).
    """
    metric = _full(metric, table)
    return Pivot(
        title=table.title,
        metric=metric,
        heading=texts.heading(metric),
        row_axis="parallel",
        column_axis="precision",
        rows=table.parallels,
        columns=table.precisions,
        entries={at: _of_cell(cell, metric) for at, cell in table.cells.items()},
    )


def of_frame(
    frame: pd.DataFrame, comparison: Comparison, rows: str, columns: str, metric: str
) -> tuple[Pivot, ...]:
    """The pivots of `metric` over the axes `rows` and `columns`, any columns of the frame.

    `comparison` is that of the same frame. Runs that differ in anything else that changes
    results stand in pivots of their own, so that only seeds are averaged. Raises
    axes.UnknownColumn, and ValueError where the axes are the same or the metric is no number.
    """
    if rows == columns:
        raise ValueError(f"rows and columns are both {rows}")
    metric = _metric(frame, metric)
    places = {
        run: (table, cell)
        for table in comparison.tables
        for cell in table.cells.values()
        for run in cell.run_dirs
    }
    columns_of = [axes.column(frame, axis) for axis in (rows, columns)]
    members: dict[tuple[Any, ...], dict[At, list[Row]]] = defaultdict(lambda: defaultdict(list))
    runs = rows_of(frame)
    for run, name in zip(runs, _sweeps(runs), strict=True):
        run[axes.SWEEP] = name
    keys = key.keys(runs)
    cells = [places[run["run_dir"]][1] for run in runs]
    at = [
        (
            _value(run, cell, found, rows, columns_of[0]),
            _value(run, cell, found, columns, columns_of[1]),
        )
        for run, cell, found in zip(runs, cells, keys, strict=True)
    ]
    untold = alike.untold(cells, keys, at, (rows, columns))
    for run, place, rest in zip(runs, at, untold, strict=True):
        members[tuple(rest.items())][place].append(run)
    rests = [dict(rest) for rest in members]
    inside = [[run for group in groups.values() for run in group] for groups in members.values()]
    trained = [labels.what(each) for each in inside]
    apart = labels.told_apart(trained, [{} for _ in rests], rests)
    pivots = [
        _pivot(groups, places, labels.title(what, differing), metric, rows, columns)
        for groups, what, differing in zip(members.values(), trained, apart, strict=True)
    ]
    return tuple(sorted(pivots, key=lambda pivot: labels.natural(pivot.title)))


def of_sweeps(
    sweeps: Sequence[tuple[pd.DataFrame, Comparison]], rows: str, columns: str, metric: str
) -> tuple[Pivot, ...]:
    """As `of_frame`, of sweeps that were each loaded and compared alone: one axis is `sweep`.

    So runs of the same settings stand side by side, where together only the newest would, and
    each sweep relates to its own baseline.
    """
    frames = [frame for frame, _ in sweeps]
    kinds = {name: frame[name].dtype for frame in frames for name in frame.columns}
    whole = [
        frame.assign(
            **{
                name: pd.Series(pd.NA, frame.index, kind)
                for name, kind in kinds.items()
                if name not in frame.columns
            }
        )
        for frame in frames
    ]
    together = Comparison(tuple(t for _, each in sweeps for t in each.tables), ())
    return of_frame(pd.concat(whole, ignore_index=True), together, rows, columns, metric)


def _pivot(
    groups: dict[At, list[Row]],
    places: dict[str, tuple[Table, Cell]],
    title: str,
    metric: str,
    rows: str,
    columns: str,
) -> Pivot:
    shown = [_ordered(axis, [at[i] for at in groups]) for i, axis in enumerate((rows, columns))]
    full = [(r, c) for r in shown[0] for c in shown[1]]
    return Pivot(
        title=title,
        metric=metric,
        heading=texts.heading(metric),
        row_axis=rows,
        column_axis=columns,
        rows=shown[0],
        columns=shown[1],
        entries={at: _of_runs(groups.get(at, []), places, metric) for at in full},
    )


def grid(pivot: Pivot) -> texts.Grid:
    """The pivot as text; its figure's name stands in the corner."""
    heads = [_named(pivot.column_axis, column) for column in pivot.columns]
    rows = [
        [
            texts.label(_named(pivot.row_axis, r)),
            *(list(pivot.entries[r, c].parts) for c in pivot.columns),
        ]
        for r in pivot.rows
    ]
    return texts.Grid([pivot.heading, *heads], rows, left=1)


def long_form(pivots: Sequence[Pivot]) -> pd.DataFrame:
    """A row per entry of the pivots: title, axes, status, n, value, sd, interval, verdict."""
    return pd.DataFrame(
        [
            {
                "table": pivot.title,
                pivot.row_axis: row,
                pivot.column_axis: column,
                "metric": pivot.metric,
                "status": entry.status or texts.NOT_ASKED,
                "n": entry.n,
                "value": entry.value,
                "sd": entry.sd,
                "low": entry.interval.low if entry.interval else None,
                "high": entry.interval.high if entry.interval else None,
                "verdict": entry.verdict or None,
            }
            for pivot in pivots
            for (row, column), entry in pivot.entries.items()
        ]
    ).astype(dict.fromkeys(("value", "sd", "low", "high"), "Float64") | {"n": "Int64"})


def _metric(frame: pd.DataFrame, name: str) -> str:
    if SHORT.get(name, name) == SPEEDUP:
        return SPEEDUP
    if name == MEMORY:
        there = (m for m in MEMORIES if m in frame.columns and frame[m].notna().any())
        return next(there, MEMORIES[-1])
    column = axes.column(frame, SHORT.get(name, name))
    if not pd.api.types.is_numeric_dtype(frame[column]):
        raise ValueError(f"{name} is not a figure of a run")
    return column


def _value(run: Row, cell: Cell, found: key.Key, axis: str, column: str) -> str:
    """A run's place on an axis; variants of a parallelism or precision are told apart.

    Hardware is the comparison key's, which runs that never started have too.
    """
    if axis in key.COMPARED:
        return cell.parallel if axis == "parallel" else cell.precision
    if axis == axes.SWEEP:
        return str(run[axes.SWEEP])
    value = found[axis] if axis in key.HARDWARE else run[column]
    return "null" if value is None else str(value)


def _sweeps(runs: Sequence[Row]) -> list[str]:
    """The directory of each run's sweep: its name, or all of its path where names repeat."""
    folders = [Path(run["run_dir"]).parent for run in runs]
    unique = len({folder.name for folder in folders}) == len(set(folders))
    return [clean(folder.name if unique else str(folder)) for folder in folders]


def _ordered(axis: str, values: Sequence[str]) -> tuple[str, ...]:
    """The values of an axis in the order of a matrix; sweeps as they were given."""
    if axis == axes.SWEEP:
        return tuple(dict.fromkeys(values))
    order = {"parallel": PARALLEL_ORDER, "precision": PRECISION_ORDER}.get(axis, ())
    place = {name: i for i, name in enumerate(order)}

    def rank(value: str) -> tuple[int, tuple[Any, ...]]:
        return place.get(value.split(" ")[0], len(order)), labels.natural(value)

    return tuple(sorted(set(values), key=rank))


def _named(axis: str, value: str) -> str:
    return value if axis in PLAIN else f"{axis.split('.')[-1]}={value}"


def _of_runs(runs: Sequence[Row], places: dict[str, tuple[Table, Cell]], metric: str) -> Entry:
    """The entry of the runs that share a place: a cell of a table, or some seeds of it."""
    cells = {id(cell): (table, cell) for table, cell in (places[r["run_dir"]] for r in runs)}
    name = "images_per_s" if metric == SPEEDUP else metric
    statuses = Counter(run["status"] for run in runs)
    done = [run for run in runs if run["status"] == record.COMPLETED]
    found = figure_of(done, name)
    effect = None
    if len(cells) == 1:
        [(table, cell)] = cells.values()
        whole = len(runs) == len(cell.run_dirs)
        effect = cell.effects.get(name) if whole else _of_seeds(name, found, table)
    return _entry(statuses, metric, found, effect, tuple(run["run_dir"] for run in runs))


def _of_seeds(name: str, found: Figure, table: Table) -> Effect | None:
    """The effect of some seeds of a cell, against the same seeds of the baseline."""
    if table.baseline is None or name not in table.baseline.figures:
        return None
    seeds = {seed for seed, _ in found.by_seed}
    theirs = table.baseline.figures[name].by_seed
    same = Figure(tuple((seed, value) for seed, value in theirs if seed in seeds))
    return verdicts.effect(name, found, same, "some seeds of a cell")


def _of_cell(cell: Cell, metric: str) -> Entry:
    name = "images_per_s" if metric == SPEEDUP else metric
    found = cell.figures[name]
    return _entry(cell.statuses, metric, found, cell.effects.get(name), cell.run_dirs)


def _entry(
    statuses: Counter[str],
    metric: str,
    found: Figure,
    effect: Effect | None,
    run_dirs: tuple[str, ...],
) -> Entry:
    missing = texts.status(statuses)
    if missing:
        return Entry(tuple(missing), status=texts.worst(statuses), run_dirs=run_dirs)
    verdict = effect.verdict if effect else ""
    done = record.COMPLETED
    if metric != SPEEDUP:
        parts = tuple(texts.figure(metric, found))
        return Entry(parts, found.mean, found.sd, found.n, found.interval, done, verdict, run_dirs)
    if effect is None:
        return Entry((texts.UNKNOWN,), n=found.n, status=done, run_dirs=run_dirs)
    parts = tuple(texts.estimate(effect))
    return Entry(parts, effect.estimate, None, found.n, effect.interval, done, verdict, run_dirs)


def _full(metric: str, table: Table) -> str:
    return table.memory if metric == MEMORY else SHORT.get(metric, metric)
