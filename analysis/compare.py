"""From the tidy table to a comparison: runs grouped into tables, each cell over its seeds and
related to the baseline of its table.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from amp_sweep import record
from analysis import article, footnotes, key, labels, verdicts
from analysis.comparison import (
    FIGURES,
    MEMORIES,
    PARALLEL_ORDER,
    PRECISION_ORDER,
    Cell,
    Comparison,
    Table,
    figure_of,
)
from analysis.frame import rows_of, swept_axes
from analysis.statistics import ALPHA
from analysis.values import clean
from analysis.verdicts import Effect

Row = dict[str, Any]

BASELINE = ("none", "fp32")


class UnknownBaseline(ValueError):
    """The baseline asked for is in none of the tables."""


def compare(
    frame: pd.DataFrame,
    baseline: tuple[str, str] | None = None,
    *,
    margin: float = verdicts.MARGIN,
    alpha: float = ALPHA,
) -> Comparison:
    """Group the runs by comparison key and relate each cell to the baseline of its table.

    `baseline` is (parallelism, precision) as the tables label them; None is none x fp32.
    An accuracy (a share of 1) is "not inferior" where a loss beyond `margin` is excluded;
    `alpha` is the chance of any false verdict in a table.
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
            margin=margin,
            alpha=alpha,
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
        if len({rows[i]["code_digest"] for i in group} - {None}) > 1:
            warnings.append(
                f"runs of {name['model']} on {name['data']} had different code (code_digest)"
            )
    return Comparison(tuple(_with_speedups(tables, baseline)), tuple(warnings))


def _axes(rows: Sequence[Row], groups: Sequence[Sequence[int]]) -> list[dict[str, str]]:
    """The swept axes of each group of runs, without those that its cells show."""
    shown = (*key.COMPARED, "seed")
    found: list[dict[str, str]] = [{} for _ in groups]

    def settings(name: str) -> list[str | None] | None:
        return [row[name] for row in rows] if rows and name in rows[0] else None

    for name, values in swept_axes([row["overrides"] for row in rows], settings).items():
        if name.split(".")[0] in shown:
            continue
        for axes, group in zip(found, groups, strict=True):
            here = {values[i] or "null" for i in group}
            axes[name] = ", ".join(sorted(here, key=labels.natural))
    return found


def _table(
    rows: Sequence[Row],
    found: key.Key,
    *,
    title: str,
    fields: dict[str, str],
    margin: float,
    alpha: float,
) -> Table:
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
        f"{', ' if why else ''}{why} [{clean(row['run_dir'])}]"
        for (p, q), cell in cells.items()
        for row in members.get((p, q), [])
        if row["status"] != record.COMPLETED
        for why in [footnotes.of_missing(row)]
        # A pending cell says so in its row, unless other seeds of it are done.
        if why or row["status"] != record.PENDING or cell.figures["images_per_s"].n
    ]
    memory = (m for m in MEMORIES if any(cell.figures[m].n for cell in cells.values()))
    return Table(
        title=title,
        settings=labels.settings(found),
        hardware=labels.hardware(found, rows),
        key=found,
        fields=fields,
        memory=next(memory, "peak_rss_mib"),
        parallels=parallels,
        precisions=precisions,
        cells=cells,
        footnotes=tuple(notes),
        missing=tuple(missing),
        margin=margin,
        alpha=alpha,
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
    rows = sorted(rows, key=lambda row: row["seed"] if row["seed"] is not None else -1)
    done = [row for row in rows if row["status"] == record.COMPLETED]
    diagnosis, evidence = footnotes.diagnosis(done)
    return Cell(
        parallel=at[0],
        precision=at[1],
        names=(rows[0]["parallel"] or "?", rows[0]["precision"] or "?") if rows else at,
        statuses=Counter(row["status"] for row in rows),
        devices=max((row["devices"] for row in done if row["devices"]), default=None),
        figures={name: figure_of(done, name) for name in FIGURES},
        flaws=footnotes.timing_flaws(done),
        machines=footnotes.machines(done),
        diagnosis=diagnosis,
        evidence=evidence,
        run_dirs=tuple(row["run_dir"] for row in rows),
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
        cells = _related(table, cell, why)
        base = None if cell is None or why else cells[cell.parallel, cell.precision]
        related.append(replace(table, cells=cells, baseline=base, unrelated=why))
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


def _related(table: Table, baseline: Cell | None, why: str) -> dict[tuple[str, str], Cell]:
    """The cells with their effects against the baseline, or the reason why there are none."""
    names = ("images_per_s", "train_time_s", table.memory, verdicts.ACCURACY)
    found: list[Effect] = []
    reasons = {}
    for at, cell in table.cells.items():
        reasons[at] = _no_speedup(cell, baseline, why)
        if baseline is None or why or not cell.completed:
            continue
        for name in names:
            unfit_for = unfit(name, cell, baseline)
            pair = (cell.figures[name], baseline.figures[name])
            effect = verdicts.effect(name, *pair, unfit_for, cell=at)
            found += [effect] if effect else []
    effects: dict[tuple[str, str], dict[str, Effect]] = defaultdict(dict)
    for effect in verdicts.judged(found, table.margin, table.alpha):
        effects[effect.cell][effect.figure] = effect
    return {
        at: replace(cell, effects=effects[at], no_speedup=reasons[at])
        for at, cell in table.cells.items()
    }


def unfit(name: str, cell: Cell, other: Cell) -> str:
    """Why the figure `name` of two cells can have no verdict; "" where it can."""
    if cell is other:
        return "the baseline itself"
    if name not in verdicts.TIMING:
        return ""
    for each in (cell, other):
        if each.flaws:
            whose = "" if each is cell else f"{each.parallel} x {each.precision}: "
            return whose + each.flaws[0]
    if cell.machines != other.machines:
        return f"mixed hardware: {_listed(cell.machines)} against {_listed(other.machines)}"
    return ""


def _listed(machines: frozenset[str]) -> str:
    return " and ".join(sorted(machines)) or "unknown"


def _no_speedup(cell: Cell, baseline: Cell | None, why: str) -> str:
    """Why a cell has no speed-up; "" where it has one."""
    if not cell.runs:
        return "not asked for"
    if not cell.completed:
        return "not completed"
    if why or baseline is None:
        return why
    ours, theirs = (each.figures["images_per_s"].mean for each in (cell, baseline))
    return "no images_per_s" if ours is None or not theirs else ""
