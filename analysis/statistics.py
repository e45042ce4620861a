"""Means, intervals and comparisons of repeated runs.

Speeds, times and memory are compared by their ratio, accuracies by their difference. A ratio is
compared on the log scale, where Student's t holds well for a few runs (a percentile bootstrap of
three runs covers 80% instead of 95%). Distributions are scipy's; of scipy only `special` is
loaded, and only where figures are repeated, since `scipy.stats` alone takes longer to import than
the tables of a sweep take to print.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

ALPHA = 0.05  # chance of any false verdict among all comparisons of a table
LEVEL = 0.95  # of every interval that is shown
POWER = 0.8  # chance to see a difference of the size observed, with the number of seeds advised
MOST_SEEDS = 1000  # nobody runs more: beyond it the advice is "more than"

# Differences relative to the values below this are rounding.
ROUNDING = 1e-12

BySeed = tuple[tuple[int | None, float], ...]


@dataclass(frozen=True)
class Interval:
    """An interval of a mean, a ratio or a difference, in its unit."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Figure:
    """One figure of a cell: (seed, value) of each completed run that has it.

    `resolution` is the step in which the figure can change, where that is coarse: 1 over the
    number of test images for an accuracy. `most`: no value can be above it.
    """

    by_seed: BySeed = ()
    resolution: float = 0.0
    most: float = math.inf

    @property
    def n(self) -> int:
        """Number of values."""
        return len(self.by_seed)

    @functools.cached_property
    def mean(self) -> float | None:
        """Mean over the seeds; None without a value."""
        return math.fsum(value for _, value in self.by_seed) / self.n if self.n else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation (n - 1); None below two values."""
        return math.sqrt(_variance([v for _, v in self.by_seed])) if self.n > 1 else None

    @property
    def interval(self) -> Interval | None:
        """95% t interval of the mean, cut off at `most` and, where no value is below it (times,
        speeds, memory), at 0; None below two values. Values that agree within a step are known
        within it.
        """
        mean, sd = self.mean, self.sd
        if mean is None or sd is None:
            return None
        sd = max(sd, self.resolution / math.sqrt(12))
        half = t_quantile((1 + LEVEL) / 2, self.n - 1) * sd / math.sqrt(self.n)
        positive = all(value >= 0 for _, value in self.by_seed)
        low = max(0.0, mean - half) if positive else mean - half
        return Interval(low, min(mean + half, self.most))


@dataclass(frozen=True)
class Contrast:
    """A cell minus another: estimate, standard error and degrees of freedom.

    On the scale of the logarithm where `log`, so that `exp(estimate)` is a ratio of geometric
    means. `n` are the numbers of runs of both.
    """

    estimate: float
    se: float
    df: float
    n: tuple[int, int]
    paired: bool
    log: bool

    @property
    def identical(self) -> bool:
        """Whether all values of both are the same."""
        return self.estimate == 0 and self.se == 0

    @property
    def value(self) -> float:
        """The estimate, as a ratio where `log`."""
        return _exp(self.estimate) if self.log else self.estimate

    def interval(self, level: float = LEVEL) -> Interval:
        """The t interval at this level, as a ratio where `log`."""
        half = t_quantile((1 + level) / 2, self.df) * self.se
        low, high = self.estimate - half, self.estimate + half
        return Interval(_exp(low), _exp(high)) if self.log else Interval(low, high)

    def p_two_sided(self, null: float = 0.0) -> float:
        """Probability of an estimate at least as far from `null`, were `null` the truth."""
        away = abs(self.estimate - null)
        if self.se == 0:
            return float(away == 0)
        return 2 * t_below(-away / self.se, self.df)

    def p_above(self, null: float = 0.0) -> float:
        """Probability of an estimate at least as high, were `null` the truth (one-sided)."""
        away = self.estimate - null
        if self.se == 0:
            return 0.5 if away == 0 else float(away < 0)
        return t_below(-away / self.se, self.df)


def contrast(ours: Figure, theirs: Figure, *, log: bool, interleaved: bool = True) -> Contrast:
    """Compare the runs of two cells.

    Paired by seed where both have the same seeds (`interleaved` runs share what the machine did
    at that time); else Welch's t, with the degrees of freedom of Welch (1947) and Satterthwaite.
    Needs two values on each side and, for `log`, positive ones. Raises ValueError.
    """
    if min(ours.n, theirs.n) < 2:
        raise ValueError("fewer than two runs")
    seeds = [[seed for seed, _ in figure.by_seed] for figure in (ours, theirs)]
    values = [[value for _, value in figure.by_seed] for figure in (ours, theirs)]
    floor = max(ours.resolution, theirs.resolution) ** 2 / 12
    if log:
        if min(*values[0], *values[1]) <= 0:
            raise ValueError("a value is not positive")
        values = [[math.log(value) for value in side] for side in values]
    paired = interleaved and set(seeds[0]) == set(seeds[1])
    paired = paired and len(set(seeds[0])) == ours.n == theirs.n
    scale = max(1.0 if log else 0.0, *map(abs, values[0]), *map(abs, values[1]))
    estimate = _mean(values[0]) - _mean(values[1])
    if paired:
        other = dict(zip(seeds[1], values[1], strict=True))
        pairs = [value - other[seed] for seed, value in zip(seeds[0], values[0], strict=True)]
        variance, df = max(_variance(pairs), 2 * floor) / ours.n, float(ours.n - 1)
    else:
        parts = [max(_variance(side), floor) / len(side) for side in values]
        variance = sum(parts)
        below = sum(part**2 / (len(s) - 1) for part, s in zip(parts, values, strict=True))
        df = variance**2 / below if below > 0 else float(ours.n + theirs.n - 2)
    se = math.sqrt(variance)
    return Contrast(
        estimate=0.0 if abs(estimate) <= ROUNDING * scale else estimate,
        se=0.0 if se <= ROUNDING * scale else se,
        df=df,
        n=(ours.n, theirs.n),
        paired=paired,
        log=log,
    )


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p values of Holm's step-down procedure (Holm 1979), in the order given.

    A value at most alpha is a verdict; the chance of any false one is at most alpha, whatever
    the comparisons have in common. scipy has Dunnett's test, which needs equal variances in all
    cells, and no Holm: the k-th smallest of m values is multiplied by m - k + 1, and no value is
    below a smaller one's.
    """
    adjusted = [0.0] * len(p)
    reached = 0.0
    for rank, index in enumerate(sorted(range(len(p)), key=lambda i: p[i])):
        reached = max(reached, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = reached
    return adjusted


def more_seeds(found: Contrast, away: float, alpha: float) -> tuple[int | None, int | None]:
    """How many more seeds (each in both cells) would show a difference of `away`.

    At the two-sided level `alpha` with 80% power: the smallest n with
    n >= V / away^2 * (t_alpha + t_power)^2 (Zar, Biostatistical Analysis, 5th ed., eq. 7.10),
    where V is the variance that one seed adds. The range is over the 80% interval of V, which
    is known badly from a few runs. None: more than 1,000.
    """
    runs = min(found.n)
    variance = found.se**2 * runs
    per_run = found.df / (runs - 1)  # degrees of freedom that each further run adds
    needed = [
        _runs_needed(variance * found.df / chi2_quantile(q, found.df), per_run, away, alpha)
        for q in (0.9, 0.1)
    ]
    low, high = (None if n is None else max(1, n - runs) for n in needed)
    return low, high


def _runs_needed(variance: float, per_run: float, away: float, alpha: float) -> int | None:
    def enough(n: int) -> bool:
        df = per_run * (n - 1)
        t = t_quantile(1 - alpha / 2, df) + t_quantile(POWER, df)
        return variance * t**2 <= n * away**2

    if not enough(MOST_SEEDS):
        return None
    low, high = 1, MOST_SEEDS  # not enough, enough
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def sampling_error(*accuracies: Figure) -> float:
    """Standard error of a difference of accuracies from the choice of test images alone.

    That of a binomial share per accuracy (its `resolution` is 1 over the number of images); what
    differs between seeds comes on top. 0 where the numbers of images are not known.
    """
    found = [(f.mean or 0.0, f.resolution) for f in accuracies]
    return math.sqrt(sum(max(0.0, share * (1 - share)) * step for share, step in found))


def t_quantile(p: float, df: float) -> float:
    """The value below which Student's t lies with probability `p`."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def t_below(t: float, df: float) -> float:
    """The probability that Student's t lies below `t`."""
    from scipy.special import stdtr

    return float(stdtr(df, t))


def chi2_quantile(p: float, df: float) -> float:
    """The value below which chi squared lies with probability `p`."""
    from scipy.special import chdtri

    return float(chdtri(df, 1 - p))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    """Sample variance (n - 1)."""
    mean = _mean(values)
    return math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))  # beyond it a float overflows
