"""The article's claims, one by one, against a table of its settings."""

from dataclasses import dataclass, replace

from analysis import article, compare, texts, verdicts
from analysis.article import HELD, NOT_DECIDED, NOT_HELD, Claim
from analysis.comparison import Cell, Table
from analysis.verdicts import Effect


@dataclass(frozen=True)
class ClaimFound:
    """A claim of the article and what our runs say of it."""

    text: str
    verdict: str  # article.HELD, NOT_HELD or NOT_DECIDED
    evidence: str


def check(table: Table) -> tuple[ClaimFound, ...]:
    """Each claim whose two cells were asked for; none where the settings are not the article's.

    A claim is held where the whole interval of the ratio or difference lies within what it
    says, not held where all of it lies outside; the intervals hold for all claims together
    (Bonferroni).
    """
    pairs = [
        (claim, *cells) for claim in article.CLAIMS if (cells := _cells(claim, table)) is not None
    ]
    found = [(claim, _effect(claim, ours, theirs)) for claim, ours, theirs in pairs]
    tested = sum(effect is not None and effect.contrast is not None for _, effect in found)
    level = 1 - table.alpha / max(tested, 1)
    return tuple(
        ClaimFound(claim.text, *_verdict(claim, effect, level, ours, theirs))
        for (claim, effect), (_, ours, theirs) in zip(found, pairs, strict=True)
    )


def _cells(claim: Claim, table: Table) -> tuple[Cell, Cell] | None:
    """The two cells that a claim is about; None where one was not asked for.

    Of variants (`ddp (devices=1)`) those with the fewest devices, as the article had one; both
    sides of the same kind of parallelism are of the same variant.
    """
    asked = [cell for cell in table.cells.values() if cell.published]
    found = [
        (ours, theirs)
        for ours in asked
        for theirs in asked
        if (ours.names, theirs.names) == (claim.at, claim.other)
        and (claim.at[0] != claim.other[0] or ours.parallel == theirs.parallel)
    ]
    return min(found, key=lambda cells: _most_devices(*cells), default=None)


def _most_devices(*cells: Cell) -> int:
    return max(cell.devices or 1 for cell in cells)


def _effect(claim: Claim, ours: Cell, theirs: Cell) -> Effect | None:
    unfit = compare.unfit(claim.figure, ours, theirs) or _devices(claim, ours, theirs)
    name = claim.figure
    return verdicts.effect(name, ours.figures[name], theirs.figures[name], unfit)


def _devices(claim: Claim, ours: Cell, theirs: Cell) -> str:
    """The article had one device: on more, its claims on speed are about something else."""
    most = _most_devices(ours, theirs)
    if claim.figure not in verdicts.TIMING or most == 1:
        return ""
    return f"{most} devices or processes here, one in the article"


def _verdict(
    claim: Claim, effect: Effect | None, level: float, ours: Cell, theirs: Cell
) -> tuple[str, str]:
    if effect is None:
        status = (
            " ".join(texts.status(ours.statuses) or texts.status(theirs.statuses)) or "no figure"
        )
        return NOT_DECIDED, status
    if effect.contrast is None:
        return NOT_DECIDED, f"{_told(effect)}; {effect.reason}"
    interval = effect.contrast.interval(level)
    low, high = interval.low, interval.high
    verdict = NOT_DECIDED
    if claim.low <= low and high <= claim.high:
        verdict = HELD
    elif high < claim.low or claim.high < low:
        verdict = NOT_HELD
    return verdict, _told(replace(effect, interval=interval))


def _told(effect: Effect) -> str:
    what = "images/s" if effect.figure in verdicts.TIMING else "points of accuracy"
    return f"{' '.join(texts.estimate(effect))} {what}"
