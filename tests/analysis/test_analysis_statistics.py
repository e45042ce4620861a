import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.comparison import figure_of
from analysis.statistics import (
    Contrast,
    Figure,
    Interval,
    contrast,
    holm,
    more_seeds,
    sampling_error,
    t_below,
    t_quantile,
)

# Hours of sleep won with two drugs (Cushny and Peebles 1905, in Student 1908); the results are
# those that R prints in the help of `t.test`.
DRUG_1 = (0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0)
DRUG_2 = (1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4)


def figure(values: object, resolution: float = 0.0) -> Figure:
    return Figure(tuple(enumerate(np.asarray(values, dtype=float).tolist())), resolution)


def test_the_paired_contrast_is_as_published_for_students_sleep_data() -> None:
    found = contrast(figure(DRUG_1), figure(DRUG_2), log=False)
    assert found.paired
    assert found.estimate / found.se == pytest.approx(-4.0621, abs=1e-4)
    assert found.df == 9
    assert found.p_two_sided() == pytest.approx(0.002833, abs=1e-6)
    interval = found.interval()
    assert (interval.low, interval.high) == pytest.approx((-2.4598858, -0.7001142), abs=1e-7)


def test_welchs_contrast_is_as_published_for_students_sleep_data() -> None:
    found = contrast(figure(DRUG_1), figure(DRUG_2), log=False, interleaved=False)
    assert not found.paired
    assert found.estimate / found.se == pytest.approx(-1.8608, abs=1e-4)
    assert found.df == pytest.approx(17.776, abs=1e-3)
    assert found.p_two_sided() == pytest.approx(0.07939, abs=1e-5)
    interval = found.interval()
    assert (interval.low, interval.high) == pytest.approx((-3.3654832, 0.2054832), abs=1e-7)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("log", [True, False])
def test_contrasts_agree_with_scipys_tests(paired: bool, log: bool) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        n = int(rng.integers(2, 8))
        m = n if paired else int(rng.integers(2, 8))
        a, b = rng.lognormal(1.0, 0.3, n), rng.lognormal(1.1, 0.1, m)
        found = contrast(figure(a), figure(b), log=log, interleaved=paired)
        x, y = (np.log(a), np.log(b)) if log else (a, b)
        oracle = stats.ttest_rel(x, y) if paired else stats.ttest_ind(x, y, equal_var=False)
        assert found.p_two_sided() == pytest.approx(oracle.pvalue, rel=1e-8)
        low, high = oracle.confidence_interval(0.95)
        ends = (math.exp(low), math.exp(high)) if log else (low, high)
        assert (found.interval().low, found.interval().high) == pytest.approx(ends, rel=1e-7)
        below = stats.t.sf(oracle.statistic - 0.5 / found.se, found.df)
        assert found.p_above(0.5) == pytest.approx(below, rel=1e-8)


@pytest.mark.parametrize("df", [1, 2, 2.7, 9, 30.5])
def test_the_t_distribution_is_scipys(df: float) -> None:
    for p in (1e-6, 0.001, 0.025, 0.4, 0.8, 0.975, 0.9999):
        assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-7, abs=1e-9)
        assert t_below(stats.t.ppf(p, df), df) == pytest.approx(p, rel=1e-7)


def test_seeds_are_paired_by_number_and_not_by_order() -> None:
    ours = Figure(((2, 4.0), (0, 2.0), (1, 3.1)))
    theirs = Figure(((0, 1.0), (1, 2.0), (2, 3.0)))
    found = contrast(ours, theirs, log=False)
    oracle = stats.ttest_rel([2.0, 3.1, 4.0], [1.0, 2.0, 3.0])
    assert found.p_two_sided() == pytest.approx(oracle.pvalue)


@pytest.mark.parametrize(
    "theirs",
    [
        Figure(((0, 1.0), (1, 2.0), (3, 3.0))),  # other seeds
        Figure(((0, 1.0), (1, 2.0))),  # one fewer
        Figure(((None, 1.0), (None, 2.0), (None, 3.0))),
    ],
)
def test_other_seeds_are_no_pairs(theirs: Figure) -> None:
    ours = Figure(((0, 2.0), (1, 3.1), (2, 4.0)))
    assert not contrast(ours, theirs, log=False).paired


def test_runs_without_a_seed_are_no_pairs_of_one_another() -> None:
    nobody = Figure(((None, 1.0), (None, 2.0), (None, 3.0)))
    assert not contrast(nobody, nobody, log=False).paired


def test_one_run_and_values_without_a_logarithm_have_no_contrast() -> None:
    with pytest.raises(ValueError, match="fewer than two runs"):
        contrast(figure([1.0]), figure([1.0, 2.0]), log=True)
    with pytest.raises(ValueError, match="not positive"):
        contrast(figure([1.0, 0.0]), figure([1.0, 2.0]), log=True)


def test_figures_without_any_spread_are_equal_or_different_for_sure() -> None:
    same = contrast(figure([5.1, 5.1]), figure([5.1, 5.1]), log=True)
    assert same.identical
    assert same.p_two_sided() == 1.0
    other = contrast(figure([5.2, 5.2]), figure([5.1, 5.1]), log=True)
    assert not other.identical
    assert other.p_two_sided() == 0.0
    assert (other.p_above(), 1 - other.p_above()) == (0.0, 1.0)


@pytest.mark.parametrize("log", [True, False])
def test_a_difference_in_the_last_digit_of_a_float_is_none(log: bool) -> None:
    assert contrast(figure([1.0, 1.0 + 2**-52]), figure([1.0, 1.0]), log=log).identical


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("known", [1 / 360, 0.0])  # the number of test images of the other side
def test_accuracies_in_coarse_steps_are_not_certain_because_seeds_agree(
    paired: bool, known: float
) -> None:
    # Three seeds, each one image of 360 better: without the step's variance p would be 0.
    better = figure([0.95 + 1 / 360] * 3, 1 / 360)
    found = contrast(better, figure([0.95] * 3, known), log=False, interleaved=paired)
    # By hand: a value is known within a step, variance step^2 / 12, twice in a difference.
    assert found.se == pytest.approx(math.sqrt(2 * (1 / 360) ** 2 / 12 / 3))
    assert found.df == pytest.approx(2 if paired else 4)
    assert 0.01 < found.p_two_sided() < 0.1
    # Nor is their mean: t(0.975, 2 df) = 4.3027.
    interval = better.interval
    assert interval is not None
    half = 4.3027 * (1 / 360) / math.sqrt(12 * 3)
    assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=1e-4)


def test_the_interval_of_a_time_does_not_begin_below_zero() -> None:
    times, changes = ((0, 0.2), (1, 2.8)), ((0, -0.2), (1, 2.8))
    found, mixed = Figure(times).interval, Figure(changes).interval
    assert found is not None
    assert mixed is not None
    assert found.low == 0.0
    # By hand: t(0.975, 1 df) = 12.706, sd / sqrt(2) = 1.3.
    assert found.high == pytest.approx(1.5 + 12.706 * 1.3, rel=1e-4)
    assert mixed.low < 0.0


def test_the_interval_of_an_accuracy_does_not_end_above_one() -> None:
    runs = [
        {"seed": seed, "test_accuracy": accuracy, "images_per_s": accuracy, "test_images": 100}
        for seed, accuracy in enumerate((0.98, 0.60))
    ]
    ends = {name: figure_of(runs, name).interval for name in ("test_accuracy", "images_per_s")}
    # By hand: 0.79 and 12.706 times 0.19.
    assert ends["test_accuracy"] == Interval(0.0, 1.0)
    assert ends["images_per_s"] is not None
    assert ends["images_per_s"].high == pytest.approx(0.79 + 12.706 * 0.19, rel=1e-4)


def test_an_interval_beyond_the_largest_float_has_an_end() -> None:
    # By hand: 12.706 standard errors of the log ratio, 68 each, are e to the 860th.
    wild = contrast(figure([1e-30, 1e29]), figure([1.0, 1.0]), log=True).interval()
    assert 0.0 <= wild.low < 1.0 < wild.high < math.inf


def test_the_mean_has_scipys_interval() -> None:
    values = [3.0, 4.5, 4.0, 5.5]
    interval = figure(values).interval
    assert interval is not None
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (interval.low, interval.high) == pytest.approx((low, high))
    assert low in interval
    assert low - 0.01 not in interval
    assert figure([3.0]).interval is None


def covered(n: int, kind: str, rng: np.random.Generator, tries: int = 3000) -> float:
    """How often an interval holds the truth, a ratio of 1.3 where two cells are compared."""
    hits = 0
    drift = rng.normal(0, 0.05, (tries, n))
    ours = 0.02 * rng.normal(size=(tries, n)) + math.log(1.3)
    theirs = rng.normal(size=(tries, n)) * 0.02
    if kind == "Welch":
        theirs *= 3  # unequal variances
    for a, b, shared in zip(ours, theirs, drift, strict=True):
        if kind == "mean":
            interval = figure(1 + a).interval
            hits += interval is not None and 1 + math.log(1.3) in interval
        elif kind == "paired":
            both = figure(np.exp(a + shared)), figure(np.exp(b + shared))
            hits += 1.3 in contrast(*both, log=True).interval()
        else:
            both = figure(np.exp(a)), figure(np.exp(b))
            hits += 1.3 in contrast(*both, log=True, interleaved=False).interval()
    return hits / tries


@pytest.mark.parametrize("kind", ["mean", "paired", "Welch"])
@pytest.mark.parametrize("n", [3, 5, 10])
def test_intervals_cover_the_truth_in_95_of_100_cases(n: int, kind: str) -> None:
    share = covered(n, kind, np.random.default_rng(n))
    # Four standard errors of 3,000 trials are 1.6%; Welch's t is a little wide at n = 3.
    assert 0.934 <= share <= (0.975 if kind == "Welch" else 0.966)


def test_holm_steps_down_as_in_the_textbook() -> None:
    # Ordered: 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1, none below the one before.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9, 0.0]) == pytest.approx([1.0, 1.0, 0.0])
    assert holm([]) == []


def test_holm_agrees_with_dunnetts_test_on_dunnetts_example() -> None:
    # Blood counts of animals without and with two drugs (Dunnett 1955).
    control = [7.40, 8.50, 7.20, 8.24, 9.84, 8.32]
    drugs = ([9.76, 8.80, 7.68, 9.36], [12.80, 9.68, 12.16, 9.20, 10.55])
    ours = holm(
        [
            contrast(figure(d), figure(control), log=False, interleaved=False).p_two_sided()
            for d in drugs
        ]
    )
    published = stats.dunnett(*drugs, control=control, rng=np.random.default_rng(0)).pvalue
    assert [p < 0.05 for p in ours] == [p < 0.05 for p in published] == [False, True]


def test_the_number_of_seeds_advised_gives_the_power_promised() -> None:
    """Against the exact power, from the noncentral t distribution."""
    sd, n, away, alpha = 0.02, 200, 0.015, 0.01
    known = Contrast(away, sd / math.sqrt(n), n - 1.0, (n, n), paired=True, log=True)
    low, high = more_seeds(known, away, alpha)
    assert low is None or low == 1  # 200 runs are more than enough
    assert high == 1
    few = Contrast(away, sd / math.sqrt(3), 2.0, (3, 3), paired=True, log=True)
    low, high = more_seeds(few, away, alpha)
    assert low is not None
    assert high is not None
    # The range is over the 80% interval of the variance, chi squared with 2 degrees.
    for more, q in ((low, 0.9), (high, 0.1)):
        variance = sd**2 * 2 / stats.chi2.ppf(q, 2)
        total = 3 + more
        critical = stats.t.ppf(1 - alpha / 2, total - 1)
        power = stats.nct.sf(critical, total - 1, away / math.sqrt(variance / total))
        assert 0.75 < power < 0.93
        # The smallest such number, by trying each.
        t = {n: stats.t.ppf(1 - alpha / 2, n - 1) + stats.t.ppf(0.8, n - 1) for n in range(2, 1000)}
        assert total == next(n for n, both in t.items() if n * away**2 >= variance * both**2)
    # The cell with the fewest runs is the one that lacks them.
    assert more_seeds(replace(few, n=(3, 200)), away, alpha) == (low, high)
    assert more_seeds(few, 1e-7, alpha) == (None, None)


def test_the_error_of_an_accuracy_is_binomial() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.binomial(360, 0.9, (2, 20_000)) / 360
    expected = float(np.std(drawn[0] - drawn[1]))
    both = (figure([0.9], 1 / 360), figure([0.9], 1 / 360))
    assert sampling_error(*both) == pytest.approx(expected, rel=0.02)
    assert sampling_error(figure([0.9]), figure([0.8])) == 0.0
