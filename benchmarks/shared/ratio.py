"""Ratios of times over repeats: their mean and its interval."""

import math
import statistics
from collections.abc import Sequence


def interval(ratios: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Geometric mean with its 95% interval by t on the logarithms; no interval from one."""
    from scipy import stats

    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), None, None
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def spread(low: float | None, high: float | None) -> str:
    """The interval as a table shows it."""
    return "-" if low is None else f"{low:.3f} to {high:.3f}"
