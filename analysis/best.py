"""The best cells of a table: in speed, memory and accuracy, together, and the best trade-off."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from analysis import compare, statistics, texts, verdicts
from analysis.comparison import Cell, Table

At = tuple[str, str]  # (parallelism, precision) as the tables label them

# Ratios this close to 1 make no difference in practice.
PRACTICAL = 1.005


@dataclass(frozen=True)
class Best:
    """The best cells of a table in one respect."""

    question: str  # "Fastest", "Least memory", "Most accurate", "Best trade-off"
    figure: str  # the column that decides; "" for the trade-off
    # Of the cells that can have a verdict the one with the best mean (of all cells where none
    # can); None where no cell has the figure.
    best: At | None
    ties: tuple[At, ...] = ()  # not distinguishable from it (or within 0.5%), best mean first
    # Cells with the figure that cannot be ranked, with the reason (one run, stitched, ...).
    unranked: tuple[tuple[At, str], ...] = ()
    # Those of them whose mean is better than that of `best`, the best mean first.
    ahead: tuple[tuple[At, str], ...] = ()
    decided: bool = False  # whether it rests on repeated runs
    text: str = ""  # what follows the question, in words


def name(at: At) -> str:
    """`none x fp32`."""
    return " x ".join(at)


def of(table: Table, question: str, figure: str) -> Best:
    """The cell with the best mean, and every cell that is not distinguishable from it.

    Cells that cannot have a verdict (a disturbed time, one run where others have more) are no
    measure for the others; those with a better mean are told first, with the reason.
    Each other cell is tested one-sided against the best; k - 1 comparisons are adjusted for by
    Bonferroni, with which the truly best cell is named in at least 95% of all cases although the
    data chose the cell that is compared with (Hsu 1984, comparisons with the best).
    """
    sign = -1 if figure == table.memory else 1
    means = {at: cell.figures[figure].mean for at, cell in table.cells.items()}
    ranked = sorted(
        ((at, mean) for at, mean in means.items() if mean is not None),
        key=lambda pair: -sign * pair[1],
    )
    if not ranked:
        return Best(question, figure, None, text="no cell has this figure")
    flaws = {at: _flaw(table, at, figure) for at, _ in ranked}
    best = next((at for at, why in flaws.items() if not why), ranked[0][0])
    order = list(flaws)
    ahead = tuple((at, flaws[at]) for at in order[: order.index(best)])
    others = [at for at in order if at != best]
    effects = {at: _against(table, at, best, figure) for at in others}
    tested = sum(effect is not None and effect.contrast is not None for effect in effects.values())
    ties, unranked = [], []
    for at, effect in effects.items():
        if effect is None:
            continue
        if at in dict(ahead):
            unranked.append((at, flaws[at]))
        elif _same_in_practice(table, at, best, figure):
            ties.append(at)
        elif effect.contrast is None:
            unranked.append((at, effect.reason))
        elif min(1.0, tested * _chance(effect.contrast, sign)) > table.alpha:
            ties.append(at)
    found = Best(question, figure, best, tuple(ties), tuple(unranked), ahead, decided=tested > 0)
    return replace(found, text=_best_text(table, found, flaws[best]))


def _flaw(table: Table, at: At, figure: str) -> str:
    """Why a cell can have no verdict on this figure; "" where it can."""
    cell = table.cells[at]
    if figure in verdicts.TIMING and cell.flaws:
        return cell.flaws[0]
    repeated = max(each.figures[figure].n for each in table.cells.values()) > 1
    return "one run" if repeated and cell.figures[figure].n == 1 else ""


def _chance(found: statistics.Contrast, sign: int) -> float:
    """Probability of falling this far behind the best, were the cell as good as it."""
    return 1 - found.p_above() if sign > 0 else found.p_above()


def _against(table: Table, at: At, best: At, figure: str) -> verdicts.Effect | None:
    ours, theirs = table.cells[at], table.cells[best]
    unfit = compare.unfit(figure, ours, theirs)
    return verdicts.effect(figure, ours.figures[figure], theirs.figures[figure], unfit)


def _same_in_practice(table: Table, at: At, best: At, figure: str) -> bool:
    """Within 0.5% of the best; for the accuracies of single runs, within the margin or two
    standard errors of what the test images alone can tell.
    """
    ours, theirs = (table.cells[each].figures[figure] for each in (at, best))
    if ours.mean is None or theirs.mean is None:
        return False
    if figure != verdicts.ACCURACY:
        low, high = sorted((ours.mean, theirs.mean))
        return high <= PRACTICAL * low
    if min(ours.n, theirs.n) > 1:
        return False
    return abs(ours.mean - theirs.mean) <= max(
        table.margin, 2 * statistics.sampling_error(ours, theirs)
    )


def _best_text(table: Table, found: Best, flaw: str) -> str:
    """`ahead` first; `flaw` is why the best itself has no verdict, "" where it can have one."""
    if found.best is None:
        return found.text
    told = f"{name(found.best)}, {_figure_text(table, found.best, found.figure)}"
    told += f", without a verdict ({flaw})" if flaw else ""
    if found.ahead:
        before = [
            f"{name(at)}, {_figure_text(table, at, found.figure)}, without a verdict ({why})"
            for at, why in found.ahead
        ]
        told = f"{'; '.join(before)}; of the other cells {told}"
    unranked = [at for at, why in found.unranked if (at, why) not in found.ahead]
    if found.ties:
        told += f"; {_ties(table, found)}"
    if found.decided and unranked:
        told += f"; without a verdict: {_names(unranked)}"
    return told


def _ties(table: Table, found: Best) -> str:
    """Which cells are not distinguishable from the best; where they are most, which are."""
    there = [at for at, cell in table.cells.items() if cell.figures[found.figure].n]
    known = {found.best, *found.ties, *(at for at, _ in found.ahead)}
    left = [at for at in there if at not in known]
    if not left:
        return "no other is distinguishable from it"
    told = _names(found.ties) if len(found.ties) <= max(2, len(left)) else f"all but {_names(left)}"
    return f"not distinguishable from it: {told}"


def _names(cells: Sequence[At]) -> str:
    return ", ".join(name(at) for at in cells)


def _figure_text(table: Table, at: At, figure: str) -> str:
    """`1,800 images/s (1.80x that of none x fp32)`, `accuracy 0.9012`."""
    cell = table.cells[at]
    mean = cell.figures[figure].mean
    value = texts.UNKNOWN if mean is None else texts.number(figure, mean)
    if figure == verdicts.ACCURACY:
        return f"accuracy {value}"
    told = f"{value} {'MiB' if figure == table.memory else texts.heading(figure)}"
    effect = cell.effects.get(figure)
    if effect is None or cell is table.baseline:
        return told
    return f"{told} ({texts.estimate(effect)[0]} that of {texts.over(table)})"


def front(table: Table, bests: Sequence[Best]) -> tuple[At, ...]:
    """The cells that no other cell beats: at least as good in speed, memory and accuracy and
    better in one. What is not distinguishable from the best counts as equal to it.
    """
    values: dict[At, tuple[float, ...]] = {}
    speeds = (at for at, cell in table.cells.items() if cell.figures["images_per_s"].n)
    for at in speeds:
        values[at] = tuple(_level(table, at, best) for best in bests)
    front = [
        at
        for at, own in values.items()
        if not any(
            all(a >= b for a, b in zip(other, own, strict=True)) and other != own
            for other in values.values()
        )
    ]
    return tuple(sorted(front, key=lambda at: -values[at][0]))


def _level(table: Table, at: At, best: Best) -> float:
    """How good a cell is in one respect, higher is better; -inf where it is not known."""
    if best.best is None:
        return 0.0
    counts = best.best if at in best.ties else at
    mean = table.cells[counts].figures[best.figure].mean
    if mean is None:
        return -math.inf
    return -mean if best.figure == table.memory else mean


def entry(table: Table, at: At) -> str:
    """A cell with its speed, memory and accuracy, in words."""
    cell = table.cells[at]
    names = ("images_per_s", table.memory, verdicts.ACCURACY)
    told = [_figure_text(table, at, n).split(" (")[0] for n in names if cell.figures[n].n]
    return f"{name(at)} ({', '.join([*told, *cell.flaw_names])})"


def trade_off(table: Table, on_front: Sequence[At]) -> Best:
    """Of the Pareto front, without cells whose accuracy is shown to be lower than the
    baseline's, the one with the most speed (per GPU) for its memory: the highest product of
    speed ratio and inverse memory ratio.
    """
    question = "Best trade-off"
    kept = [at for at in on_front if not _loses_accuracy(table, table.cells[at])]
    if not kept:
        return Best(question, "", None, text="no cell keeps the baseline's accuracy")

    def value(at: At) -> float:
        cell = table.cells[at]
        memory = cell.figures[table.memory].mean or 1.0
        gpus = cell.devices or 1 if table.key.get("device_type") == "cuda" else 1
        return (cell.figures["images_per_s"].mean or 0.0) / gpus / memory

    best = max(kept, key=value)
    cell = table.cells[best]
    names = ("images_per_s", table.memory, verdicts.ACCURACY)
    told = [_figure_text(table, best, n) for n in names if cell.figures[n].n]
    flaw = _flaw(table, best, "images_per_s")
    told += [f"without a verdict on its speed ({flaw})"] if flaw else []
    decided = cell.figures["images_per_s"].n > 1 and not flaw
    return Best(question, "", best, decided=decided, text=f"{name(best)}, {', '.join(told)}")


def _loses_accuracy(table: Table, cell: Cell) -> bool:
    """Whether the accuracy is shown to be lower than the baseline's; of single runs, whether it
    is lower by more than the margin and two standard errors.
    """
    effect = cell.effects.get(verdicts.ACCURACY)
    if effect is None or cell is table.baseline or table.baseline is None:
        return False
    if effect.p is not None:
        return effect.verdict == verdicts.WORSE and not effect.within_margin
    figures = (cell.figures[verdicts.ACCURACY], table.baseline.figures[verdicts.ACCURACY])
    return effect.estimate < -max(table.margin, 2 * statistics.sampling_error(*figures))
