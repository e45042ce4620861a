"""What to do: the fastest cell, the smallest, the best trade-off, and what the article's claims
are worth here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from amp_sweep import record
from analysis import best, claims, texts, verdicts
from analysis.best import At, Best, name
from analysis.claims import ClaimFound
from analysis.comparison import Cell, Comparison, Table

# A run that could not tell what bounds it; why is in its notes.
UNDETERMINED = "undetermined"


@dataclass(frozen=True)
class Line:
    """One cell in words."""

    at: At
    text: str  # "1.85x (1.80 to 1.90) the speed of none x fp32: faster; 0.93x the memory: less"
    diagnosis: str = ""  # "input-bound", ...; "" where it is not known
    evidence: str = ""  # a sentence with the figures behind it
    good: bool | None = None  # True: faster, False: slower or not completed, None: not shown


@dataclass(frozen=True)
class TableAnswer:
    """The answer of one table; `title` is the table's."""

    title: str
    bests: tuple[Best, ...]  # Fastest, Least memory, Most accurate
    trade_off: Best
    front: tuple[At, ...]  # Pareto front over speed, memory and accuracy
    front_text: str
    lines: tuple[Line, ...]  # a line per cell that was asked for
    claims: tuple[ClaimFound, ...]  # empty where the settings are not the article's
    remarks: tuple[str, ...]  # what limits the answer: single runs, cells without figures


@dataclass(frozen=True)
class Answer:
    """What a comparison says, a part per table, in the tables' order."""

    tables: tuple[TableAnswer, ...]


def answer(comparison: Comparison) -> Answer:
    """What the comparison says, table by table."""
    return Answer(tuple(_of_table(table) for table in comparison.tables))


def sentences(found: TableAnswer) -> list[tuple[str, str]]:
    """(what, which) of the answer of a table: `("Fastest", "none x autocast, ...")`."""
    told = [(each.question, each.text) for each in (*found.bests, found.trade_off) if each.best]
    if len(found.front) > 1:
        told.append(("Pareto front", found.front_text))
    return told


def reasons(found: TableAnswer) -> list[tuple[str, str]]:
    """(cell, what bounds its speed and why), where it is known."""
    return [
        (name(line.at), f"{line.diagnosis}: {line.evidence}" if line.evidence else line.diagnosis)
        for line in found.lines
        if line.diagnosis not in ("", UNDETERMINED)
    ]


def claims_grid(found: TableAnswer) -> texts.Grid | None:
    """The article's claims with what our runs say; None where there are none."""
    rows = [[[claim.text], [claim.verdict], [claim.evidence]] for claim in found.claims]
    return texts.Grid(["the article says", "here", "measured"], rows, left=3) if rows else None


def _of_table(table: Table) -> TableAnswer:
    bests = (
        best.of(table, "Fastest", "images_per_s"),
        best.of(table, "Least memory", table.memory),
        best.of(table, "Most accurate", verdicts.ACCURACY),
    )
    front = best.front(table, bests)
    return TableAnswer(
        title=table.title,
        bests=bests,
        trade_off=best.trade_off(table, front),
        front=front,
        front_text="; ".join(best.entry(table, at) for at in front),
        lines=tuple(_line(table, at, cell) for at, cell in table.cells.items() if cell.runs),
        claims=claims.check(table),
        remarks=tuple(_remarks(table)),
    )


def _line(table: Table, at: At, cell: Cell) -> Line:
    missing = texts.status(cell.statuses)
    if missing:
        return Line(at, " ".join(missing), good=False)
    over = texts.over(table)
    if cell is table.baseline:
        told = "the baseline"
    elif not cell.effects:
        told = cell.no_speedup
    else:
        told = "; ".join(_effects_text(table, cell)) + f", against {over}"
    speed = cell.effects.get("images_per_s")
    good = None
    if speed and speed.verdict in (verdicts.FASTER, verdicts.SLOWER):
        good = speed.verdict == verdicts.FASTER
    return Line(at, told, cell.diagnosis, cell.evidence, good)


def _effects_text(table: Table, cell: Cell) -> Iterable[str]:
    whats = {"images_per_s": "the speed", table.memory: "the memory", verdicts.ACCURACY: "points"}
    for figure, what in whats.items():
        if (effect := cell.effects.get(figure)) is not None:
            verdict = " ".join(texts.verdict(effect)) if effect.verdict else effect.reason
            points = " of accuracy" if figure == verdicts.ACCURACY else ""
            yield f"{' '.join(texts.estimate(effect))} {what}{points}: {verdict}"


def _remarks(table: Table) -> Iterable[str]:
    """What limits the answer."""
    cells = [cell for cell in table.cells.values() if cell.completed]
    single = [cell for cell in cells if cell.completed == 1]
    if cells and len(single) == len(cells):
        yield (
            "one run per cell: the order may be chance, so there is no verdict; "
            "repeat seeds (seed=0,1,2)"
        )
    elif single:
        yield f"one run, so no verdict: {', '.join(name(_at(cell)) for cell in single)}"
    disturbed: dict[str, list[str]] = {}
    for cell in cells:
        for flaw in cell.flaws:
            disturbed.setdefault(flaw, []).append(name(_at(cell)))
    for flaw, names in disturbed.items():
        yield f"times and speeds without a verdict, {flaw}: {', '.join(names)}"
    missing: dict[str, list[str]] = {}
    for cell in table.cells.values():
        if cell.runs and not cell.completed:
            status = max(cell.statuses, key=record.STATUSES.index)
            missing.setdefault(status.upper(), []).append(name(_at(cell)))
    for status, names in missing.items():
        yield f"without figures, {status}: {', '.join(names)}"
    if table.unrelated:
        yield f"no speed-ups: {table.unrelated}"


def _at(cell: Cell) -> At:
    return cell.parallel, cell.precision
