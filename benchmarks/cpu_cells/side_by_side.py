"""Ours and the loop written by hand, in turn."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cpu_cells.hand_written import run_hand_written
from benchmarks.cpu_cells.ours import run_ours
from benchmarks.cpu_cells.work import Work
from benchmarks.shared.ratio import interval


@dataclass(frozen=True)
class Row:
    """One cell: milliseconds of an epoch, and their ratio over the repeats."""

    parallel: str
    precision: str
    repeats: int
    hand_ms: float
    ours_ms: float
    ratio: float
    low: float | None  # 95% interval of the ratio; none from one repeat
    high: float | None
    evaluate_ms: float  # of the loop


def steady(epochs: Sequence[float]) -> float:
    """The median epoch without the first, in milliseconds."""
    return 1e3 * statistics.median(epochs[1:] or epochs)


def compare(work: Work, repeats: int, folder: Path) -> Row:
    """Ours and the loop in turn, `repeats` times."""
    ours, hand, evaluations = [], [], []
    for repeat in range(repeats):
        for first in (repeat % 2 == 0, repeat % 2 != 0):  # who begins changes
            if first:
                found = run_hand_written(work)
                hand.append(steady(found["train_s"]))
                evaluations.append(steady(found["evaluate_s"]))
            else:
                ours.append(steady(run_ours(work, folder)[0]))
    ratio, low, high = interval([a / b for a, b in zip(ours, hand, strict=True)])
    return Row(
        work.parallel,
        work.precision,
        repeats,
        statistics.median(hand),
        statistics.median(ours),
        ratio,
        low,
        high,
        statistics.median(evaluations),
    )
