"""A cell against another: how large the difference is, and whether it is shown.

A verdict says no more than the runs do: it is given where the difference would come up by chance
in at most `ALPHA` of all tables, all comparisons of the table taken together (Holm). One run
on a side, or a time that was disturbed, has an estimate and no verdict, with the reason.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis import statistics
from analysis.statistics import ALPHA, Contrast, Figure, Interval

FASTER, SLOWER = "faster", "slower"
LESS, MORE = "less", "more"  # memory
BETTER, WORSE = "better", "worse"  # accuracy
NOT_INFERIOR = "not inferior"  # no difference shown, and a loss beyond the margin excluded
NO_DIFFERENCE = "no difference shown"
IDENTICAL = "identical"  # the same in every run of both cells
NOT_DECIDED = "not decided"  # accuracy: neither a difference nor "not inferior" is shown

# An accuracy may be this much lower (as a share of 1) and still count as "not inferior".
MARGIN = 0.005

RATIO, DIFFERENCE = "ratio", "difference"

ACCURACY = "test_accuracy"
TIMING = frozenset({"images_per_s", "train_time_s"})
GATE, GATED = "images_per_s", "train_time_s"  # the second is tested after the first

# Figure -> verdict when it is higher, verdict when it is lower.
WORDS = {
    "images_per_s": (FASTER, SLOWER),
    "train_time_s": (SLOWER, FASTER),
    "peak_allocated_mib": (MORE, LESS),
    "peak_rss_above_mib": (MORE, LESS),
    "peak_rss_mib": (MORE, LESS),
    ACCURACY: (BETTER, WORSE),
}

# Verdicts that speak for a cell, against it, and neither.
GOOD = frozenset({FASTER, LESS, BETTER, NOT_INFERIOR})
BAD = frozenset({SLOWER, MORE, WORSE})


@dataclass(frozen=True)
class Effect:
    """One figure of a cell against another cell's.

    `estimate` and `interval` (95%, of this comparison alone) are a ratio (of geometric means)
    for times, speeds and memory, a difference (share of 1) for accuracy. `p_adjusted` counts
    all comparisons of the table; the verdict follows from it.
    """

    figure: str
    scale: str  # RATIO or DIFFERENCE
    estimate: float
    interval: Interval | None = None  # None where `reason` says why
    p: float | None = None
    p_adjusted: float | None = None
    method: str = ""  # "paired t" or "Welch t"
    n: tuple[int, int] = (0, 0)  # runs of this cell and of the other
    verdict: str = ""  # one of the words above; "" where there is none
    reason: str = ""  # why there is no verdict
    within_margin: bool | None = None  # accuracy: a loss beyond the margin is excluded
    contrast: Contrast | None = None
    cell: tuple[str, str] = ("", "")  # whose figure it is
    # What is not decided: (difference, alpha) of each way in which it may come to be.
    open_ways: tuple[tuple[float, float], ...] = ()

    @functools.cached_property
    def more_seeds(self) -> tuple[int | None, int | None] | None:
        """How many more seeds would decide it, from and to (None: more than 1,000), if the
        difference is as large as it looks; None where nothing is open.
        """
        if self.contrast is None or not self.open_ways:
            return None
        ranges = [statistics.more_seeds(self.contrast, *way) for way in self.open_ways]
        low, high = (
            min((n for n in ends if n is not None), default=None)
            for ends in zip(*ranges, strict=True)
        )
        return low, high


def effect(
    name: str,
    ours: Figure,
    theirs: Figure,
    unfit: str = "",
    *,
    cell: tuple[str, str] = ("", ""),
    interleaved: bool = True,
) -> Effect | None:
    """The effect on one figure, without a verdict yet; None where a side has no value.

    `unfit` is a reason why these runs can have no verdict. Runs of the same seed are pairs where
    they were made in turns (`interleaved`).
    """
    mean, other = ours.mean, theirs.mean
    if mean is None or other is None:
        return None
    log = name != ACCURACY
    scale = RATIO if log else DIFFERENCE
    n = (ours.n, theirs.n)
    if log and other <= 0:
        return None
    estimate = mean / other if log else mean - other
    if min(n) > 1:
        try:
            found = statistics.contrast(ours, theirs, log=log, interleaved=interleaved)
        except ValueError as error:
            unfit = unfit or str(error)
        else:
            estimate = found.value
            if not unfit:
                return Effect(
                    name,
                    scale,
                    estimate,
                    found.interval(),
                    found.p_two_sided(),
                    method="paired t" if found.paired else "Welch t",
                    n=n,
                    contrast=found,
                    cell=cell,
                )
    reason = unfit or ("one run on a side" if max(n) > 1 else "one run each")
    return Effect(name, scale, estimate, n=n, reason=reason, cell=cell)


def judged(effects: Sequence[Effect], margin: float = MARGIN, alpha: float = ALPHA) -> list[Effect]:
    """The same effects with verdicts, adjusted over all of them (Holm).

    Two kinds cost the others nothing. Figures that are the same in every run of both cells need
    no test. And `train_time_s` asks again what `images_per_s` asked: it is tested only after
    that has shown a difference in the cell, which keeps the chance of a false verdict (a gate
    in front of a family). "Not inferior" is tested one-sided at alpha / 2, adjusted over all
    accuracies.
    """
    tested = [i for i, e in enumerate(effects) if e.contrast and not e.contrast.identical]
    doors = {effects[i].cell for i in tested if effects[i].figure == GATE}
    gated = [i for i in tested if effects[i].figure == GATED and effects[i].cell in doors]
    first = [i for i in tested if i not in gated]
    accuracies = [i for i in tested if effects[i].figure == ACCURACY]
    adjusted = _holm(effects, first)
    shown = {effects[i].cell for i in first if effects[i].figure == GATE and adjusted[i] <= alpha}
    adjusted |= {
        i: p if effects[i].cell in shown else 1.0 for i, p in _holm(effects, gated).items()
    }
    inferior = [_contrast(effects[i]).p_above(-margin) for i in accuracies]
    within = dict(zip(accuracies, statistics.holm(inferior), strict=True))
    # What further seeds would have to decide.
    left = max(1, sum(adjusted[i] > alpha for i in first))
    undecided = max(1, sum(p > alpha / 2 for p in within.values()))
    found = list(effects)
    for i, effect in enumerate(effects):
        if effect.contrast is None:
            continue
        if i not in adjusted:
            found[i] = replace(effect, p_adjusted=1.0, verdict=IDENTICAL)
            continue
        ok = within[i] <= alpha / 2 if i in within else None
        verdict = _verdict(effect, adjusted[i] <= alpha, ok)
        ways: list[tuple[float, float]] = []
        if verdict in (NO_DIFFERENCE, NOT_DECIDED):
            away = effect.contrast.estimate
            ways.append((abs(away), alpha / left))
            if ok is not None and away > -margin:
                ways.append((away + margin, alpha / undecided))
        found[i] = replace(
            effect,
            p_adjusted=adjusted[i],
            verdict=verdict,
            within_margin=ok,
            open_ways=tuple(ways),
        )
    return found


def _holm(effects: Sequence[Effect], which: Sequence[int]) -> dict[int, float]:
    p = [_contrast(effects[i]).p_two_sided() for i in which]
    return dict(zip(which, statistics.holm(p), strict=True))


def _contrast(effect: Effect) -> Contrast:
    if effect.contrast is None:
        raise ValueError(f"{effect.figure} was not tested")
    return effect.contrast


def _verdict(found: Effect, shown: bool, within_margin: bool | None) -> str:
    above, below = WORDS[found.figure]
    null = 1.0 if found.scale == RATIO else 0.0
    if shown:
        return above if found.estimate > null else below
    if within_margin is None:
        return NO_DIFFERENCE
    return NOT_INFERIOR if within_margin else NOT_DECIDED
