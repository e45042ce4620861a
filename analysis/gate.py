"""A run of a sweep against an earlier one: what got worse beyond tolerance and noise."""

import functools
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from amp_sweep import record
from analysis import columns, footnotes, key, labels, statistics, texts, verdicts
from analysis.comparison import MEMORIES, figure_of
from analysis.frame import rows_of
from analysis.statistics import ALPHA, Contrast
from analysis.values import TEXT
from analysis.verdicts import ACCURACY, RATIO, Effect

Row = dict[str, Any]

WORSE, SAME, IMPROVED, NOT_COMPARED = "WORSE", "ok", "improved", "not compared"

SPEED, MEMORY = "images_per_s", "memory"


@dataclass(frozen=True)
class Tolerances:
    """What may be lost: a share of speed, a share more memory, a difference in accuracy (a share
    of 1: 0.005 is half a point).
    """

    speed: float = 0.05
    memory: float = 0.05
    accuracy: float = verdicts.MARGIN


@dataclass(frozen=True)
class Check:
    """One figure of one cell, before and now."""

    cell: str
    figure: str  # column; "" where the cell as a whole is judged
    verdict: str
    why: str = ""
    before: float | None = None  # means
    now: float | None = None
    effect: Effect | None = None  # now over before, or now minus before
    sampling_error: float = 0.0  # of an accuracy: what the choice of test images makes differ


class BadBaseline(ValueError):
    """A baseline that cannot be used, with the reason in words."""


def read(path: Path) -> pd.DataFrame:
    """A `cells.csv` of an earlier run, as `frame.load` gives it. Raises BadBaseline."""
    kinds = {**columns.HEAD, **columns.TAIL}
    kinds |= {name: kind for known in columns.SECTIONS.values() for name, kind in known.items()}
    try:
        heads = pd.read_csv(path, nrows=0).columns
        if missing := {"status", "run_dir", "parallel", "precision", "seed"} - set(heads):
            raise BadBaseline(f"{path}: no cells.csv (no column {min(missing)})")
        types: dict[Any, Any] = {name: kinds.get(name, TEXT) for name in heads}
        frame = pd.read_csv(path, dtype=types, keep_default_na=False, na_values=[""])
        # What an earlier version did not write is null.
        for name in kinds.keys() - set(heads):
            frame[name] = pd.Series(pd.NA, index=frame.index, dtype=kinds[name])
        return frame
    except OSError as error:
        raise BadBaseline(f"{path}: {error.strerror or error}") from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise BadBaseline(f"{path}: no cells.csv ({error})") from error
    except (ValueError, TypeError, OverflowError) as error:
        if isinstance(error, BadBaseline):
            raise
        raise BadBaseline(f"{path}: a value does not fit its column ({error})") from error


def check(
    now: pd.DataFrame, before: pd.DataFrame, allowed: Tolerances, alpha: float = ALPHA
) -> list[Check]:
    """Compare every cell that the baseline completed with the same settings now.

    The settings are those of the run's identity without the seed, as far as both know them;
    PyTorch and CUDA may differ, since a gate is to judge upgrades. A figure is worse where its
    mean is beyond the tolerance and, if both have two runs or more, the difference is beyond
    the noise: one-sided Welch t (accuracy: paired by seed), adjusted (Holm) over all checks, so
    that a sweep that did not change fails in at most `alpha` of all cases.
    """
    there, here = (_groups(frame, (now, before)) for frame in (before, now))
    names = _names(there, here)
    checks: list[Check] = []
    for identity, old in there.items():
        done = [row for row in old if row["status"] == record.COMPLETED]
        if done:
            checks += _of_cell(names[identity], done, here.get(identity, []))
    new = [identity for identity in here if identity not in there]
    checks += [Check(names[each], "", NOT_COMPARED, "not in the baseline") for each in new]
    return _judged(checks, allowed, alpha)


def failed(checks: Sequence[Check]) -> bool:
    """Whether anything got worse."""
    return any(check.verdict == WORSE for check in checks)


def compared(checks: Sequence[Check]) -> int:
    """How many checks have an outcome."""
    return sum(check.verdict != NOT_COMPARED for check in checks)


def unseen(checks: Sequence[Check]) -> list[str]:
    """The figures that were to be compared, and could be in no cell."""
    figures = {check.figure for check in checks if check.figure}
    seen = {check.figure for check in checks if check.verdict != NOT_COMPARED}
    return [texts.heading(figure) for figure in sorted(figures - seen)]


def grid(checks: Sequence[Check]) -> texts.Grid:
    """The checks as a table, the worst first."""
    order = (WORSE, IMPROVED, SAME, NOT_COMPARED)
    rows = []
    for each in sorted(checks, key=lambda check: order.index(check.verdict)):
        values = [
            "" if value is None else texts.number(each.figure, value)
            for value in (each.before, each.now)
        ]
        change = texts.estimate(each.effect) if each.effect else [""]
        figure = texts.heading(each.figure) if each.figure else ""
        rows.append(
            [[each.cell], [figure], *([v] for v in values), change, [each.verdict], [each.why]]
        )
    return texts.Grid(["cell", "figure", "baseline", "now", "change", "outcome", "why"], rows)


def legend(checks: Sequence[Check], alpha: float = ALPHA) -> list[str]:
    """What the columns of `grid` mean, as far as they have entries."""
    effects = [check.effect for check in checks if check.effect]
    told = []
    if effects:
        told.append(
            "change: now over the baseline (ratio of means); of an accuracy now minus the "
            "baseline, in points (hundredths)"
        )
    if methods := {effect.method for effect in effects if effect.interval}:
        told += [
            f"in brackets the {statistics.LEVEL:.0%} interval of each change alone "
            f"({' and '.join(sorted(methods))} over the seeds)",
            f"got worse: beyond the tolerance and, where both sides have repeated runs, beyond the "
            f"noise (one-sided, {alpha:.0%} over all checks, Holm)",
        ]
    return told


def _groups(frame: pd.DataFrame, both: Sequence[pd.DataFrame]) -> dict[tuple[Any, ...], list[Row]]:
    """The runs by what they are asked to do, in the settings that both frames know."""
    shared = functools.reduce(lambda a, b: a & b, (set(each.columns) for each in both))
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    rows = rows_of(frame)
    for row, where in zip(rows, key.hardware(rows), strict=True):
        identity = {
            name: _plain(value)
            for name, value in key.identity(row).items()
            if name != "seed" and f"config.{name}" in shared
        }
        groups[tuple(sorted(identity.items()))].append({**row, "device_name": where["device_name"]})
    return groups


def _plain(value: str | None) -> str | None:
    """A setting as any program may write it into a file of commas: `True` is true, `64.0` is 64,
    and "" is null.
    """
    if not value:
        return None
    if value.lower() in ("true", "false"):
        return value.lower()
    try:
        number = float(value)
    except ValueError:
        return value
    # Digits beyond a float's are kept, and so are the words for what is no number.
    return f"{number:.15g}" if abs(number) < 1e15 else value


def _names(*sides: dict[tuple[Any, ...], list[Row]]) -> dict[tuple[Any, ...], str]:
    """A name for each group: model, data, parallelism, precision and what tells namesakes apart."""
    members = {identity: rows for side in sides for identity, rows in side.items()}
    plain = [
        {**labels.what(rows), **{n: rows[0][n] or "?" for n in key.COMPARED}}
        for rows in members.values()
    ]
    apart = labels.told_apart(plain, [{} for _ in plain], [dict(each) for each in members])
    return {
        identity: labels.title(what, {n: v for n, v in differing.items() if n not in what})
        + f": {what['parallel']} x {what['precision']}"
        for identity, what, differing in zip(members, plain, apart, strict=True)
    }


def _of_cell(name: str, before: Sequence[Row], runs: Sequence[Row]) -> list[Check]:
    """The checks of one cell, without verdicts where figures are to be compared."""
    done = [row for row in runs if row["status"] == record.COMPLETED]
    broken = Counter(row["status"] for row in runs if row["status"] != record.COMPLETED)
    if not runs:
        return [Check(name, "", NOT_COMPARED, "not run now")]
    checks = []
    if broken:
        told = ", ".join(f"{n} of {len(runs)} {status}" for status, n in broken.items())
        checks.append(Check(name, "", WORSE, told))
    if not done:
        return checks
    for field in ("device_name", "devices"):
        sides = [{row[field] for row in side} for side in (done, before)]
        if sides[0] != sides[1]:
            told = " against ".join(", ".join(map(str, sorted(side, key=str))) for side in sides)
            return [*checks, Check(name, "", NOT_COMPARED, f"{field} {told}")]
    known = [m for m in MEMORIES if figure_of(before, m).n]
    memory = next((m for m in known if figure_of(done, m).n), next(iter(known), None))
    for figure in (SPEED, memory, ACCURACY):
        if figure is not None:
            checks.append(_of_figure(name, figure, before, done))
    return checks


def _of_figure(name: str, figure: str, before: Sequence[Row], done: Sequence[Row]) -> Check:
    ours, theirs = figure_of(done, figure), figure_of(before, figure)
    unfit = ""
    if figure == SPEED:
        flaws = [
            *footnotes.timing_flaws(done),
            *(f"baseline {f}" for f in footnotes.timing_flaws(before)),
        ]
        if footnotes.machines(done) != footnotes.machines(before):
            flaws.append("another host")
        unfit = flaws[0] if flaws else ""
    effect = verdicts.effect(figure, ours, theirs, unfit, interleaved=figure == ACCURACY)
    plain = Check(name, figure, SAME, before=theirs.mean, now=ours.mean, effect=effect)
    if effect is None:
        if theirs.n and not ours.n:
            return replace(plain, verdict=WORSE, why="the figure is gone")
        return replace(plain, verdict=NOT_COMPARED, why="no figure in the baseline")
    if figure == ACCURACY:
        plain = replace(plain, sampling_error=statistics.sampling_error(ours, theirs))
    return replace(plain, verdict=NOT_COMPARED, why=unfit) if unfit else plain


def _judged(checks: Sequence[Check], allowed: Tolerances, alpha: float) -> list[Check]:
    """The same checks, with verdicts where figures are compared."""
    tested = [i for i, each in enumerate(checks) if each.verdict == SAME and each.effect]
    adjusted = {i: 1.0 for i in tested if _contrast(checks[i])}
    # What is the same in every run needs no test.
    tests = [i for i in adjusted if (found := _contrast(checks[i])) and not found.identical]
    adjusted |= dict(zip(tests, statistics.holm([_chance(checks[i]) for i in tests]), strict=True))
    judged = list(checks)
    for i in tested:
        judged[i] = _verdict(checks[i], allowed, adjusted.get(i), alpha)
    return judged


def _contrast(check: Check) -> Contrast | None:
    return check.effect.contrast if check.effect else None


def _loss(check: Check, effect: Effect) -> float:
    """How much worse: a share of speed or memory, a difference in accuracy; below 0: better."""
    if effect.scale != RATIO:
        return -effect.estimate
    return effect.estimate - 1 if check.figure in MEMORIES else 1 - effect.estimate


def _chance(check: Check) -> float:
    """One-sided probability of a change this large in its direction, had nothing changed."""
    contrast = _contrast(check)
    return 1.0 if contrast is None else contrast.p_two_sided() / 2


def _verdict(check: Check, allowed: Tolerances, p: float | None, alpha: float) -> Check:
    effect = check.effect
    if effect is None:
        return check
    memory = check.figure in MEMORIES
    limit = (
        allowed.accuracy
        if check.figure == ACCURACY
        else allowed.memory
        if memory
        else allowed.speed
    )
    loss = _loss(check, effect)
    if p is None and check.figure == ACCURACY:
        limit = max(limit, 2 * check.sampling_error)
    beyond_noise = p is None or p <= alpha
    why = "" if p is not None else "one run on a side: the noise is not known"
    if abs(loss) > limit and not beyond_noise:
        return replace(check, why="within the noise")
    if loss > limit:
        return replace(check, verdict=WORSE, why=why or f"beyond {_told(limit, check.figure)}")
    return replace(check, verdict=IMPROVED if loss < -limit else SAME, why=why)


def _told(limit: float, figure: str) -> str:
    return f"{100 * limit:.3g} points" if figure == ACCURACY else f"{limit:.3g} of it"
