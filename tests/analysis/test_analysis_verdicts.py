import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from analysis.statistics import Figure
from analysis.verdicts import (
    ACCURACY,
    BETTER,
    FASTER,
    IDENTICAL,
    LESS,
    MORE,
    NO_DIFFERENCE,
    NOT_DECIDED,
    NOT_INFERIOR,
    SLOWER,
    WORSE,
    Effect,
    effect,
    judged,
)

FIGURES = ("images_per_s", "train_time_s", "peak_rss_mib", ACCURACY)
FALSE = {FASTER, SLOWER, LESS, MORE, BETTER, WORSE}


def figure(*values: float, resolution: float = 0.0) -> Figure:
    return Figure(tuple(enumerate(values)), resolution)


def of(name: str, ours: Figure, theirs: Figure, unfit: str = "") -> Effect:
    found = effect(name, ours, theirs, unfit, cell=("a", "b"))
    assert found is not None
    return found


def verdict(name: str, ours: Figure, theirs: Figure) -> str:
    return judged([of(name, ours, theirs)])[0].verdict


@pytest.mark.parametrize("unfit", ["", "contended"])
def test_a_speed_up_is_that_of_geometric_means_with_or_without_a_verdict(unfit: str) -> None:
    found = of("images_per_s", figure(2.0, 8.0), figure(1.0, 1.0), unfit)
    assert (found.estimate, found.reason) == (pytest.approx(4.0), unfit)


@pytest.mark.parametrize(
    ("name", "higher", "lower"),
    [
        ("images_per_s", FASTER, SLOWER),
        ("peak_allocated_mib", MORE, LESS),
        ("peak_rss_above_mib", MORE, LESS),
        ("peak_rss_mib", MORE, LESS),
        (ACCURACY, BETTER, WORSE),
    ],
)
def test_verdicts_say_which_way_is_better(name: str, higher: str, lower: str) -> None:
    low, high = figure(0.50, 0.51, 0.49), figure(0.90, 0.91, 0.89)
    assert verdict(name, high, low) == higher
    assert verdict(name, low, high) == lower


def test_a_time_is_judged_after_the_speed_has_shown_a_difference() -> None:
    base, quick = figure(1.00, 1.01, 0.99), figure(2.00, 2.02, 1.99)
    times = of("train_time_s", base, quick)
    speed = of("images_per_s", quick, base)
    both = judged([speed, times])
    assert both[1].verdict == FASTER
    assert both[0].p_adjusted == speed.p  # the time costs the speed nothing
    memory = of("peak_rss_mib", quick, base)  # a difference, and none of speed
    [_, more, time] = judged([of("images_per_s", base, figure(1.0, 1.02, 0.97)), memory, times])
    assert (more.verdict, time.verdict) == (MORE, NO_DIFFERENCE)


def test_a_time_without_a_speed_is_judged_on_its_own() -> None:
    slow, quick = figure(2.00, 2.02, 1.99), figure(1.00, 1.01, 0.99)
    assert judged([of("train_time_s", slow, quick)])[0].verdict == SLOWER


def test_accuracy_is_not_inferior_only_where_a_loss_beyond_the_margin_is_excluded() -> None:
    base = figure(0.900, 0.901, 0.899, 0.9005)
    close = figure(0.8995, 0.9012, 0.8986, 0.9006)
    vague = figure(0.890, 0.905, 0.893, 0.909)
    [sure] = judged([of(ACCURACY, close, base)])
    assert (sure.verdict, sure.within_margin) == (NOT_INFERIOR, True)
    # By hand: the mean difference is -0.00018, its paired 95% interval ends above -0.005.
    assert sure.interval is not None
    assert sure.interval.low > -0.005
    assert sure.more_seeds is None
    [open_] = judged([of(ACCURACY, vague, base)])
    assert (open_.verdict, open_.within_margin) == (NOT_DECIDED, False)
    low, high = open_.more_seeds or (None, None)
    assert low is not None
    assert high is not None
    assert 1 <= low < high
    # With a margin wide enough the same runs are not inferior.
    assert judged([of(ACCURACY, vague, base)], margin=0.05)[0].verdict == NOT_INFERIOR


@pytest.mark.parametrize(("sure", "cells", "verdict"), [(0.98, 1, NOT_INFERIOR),
                                                       (0.97, 1, NOT_DECIDED),
                                                       (0.98, 2, NOT_DECIDED)])  # fmt: skip
def test_a_loss_of_the_margin_is_excluded_one_sided_at_half_of_alpha_over_all_cells(
    sure: float, cells: int, verdict: str
) -> None:
    one = of(ACCURACY, figure(0.8995, 0.9012, 0.8986, 0.9006), figure(0.900, 0.901, 0.899, 0.9005))
    assert one.contrast is not None
    # The margin which a one-sided t test excludes with this confidence.
    margin = float(stats.t.ppf(sure, 3)) * one.contrast.se - one.estimate
    assert {each.verdict for each in judged([one] * cells, margin)} == {verdict}


def test_more_seeds_would_show_a_difference_or_exclude_the_margin_at_their_share_of_alpha() -> None:
    base, vague = figure(0.900, 0.901, 0.899, 0.9005), figure(0.890, 0.905, 0.893, 0.909)
    open_ = of(ACCURACY, vague, base)
    lower = of(ACCURACY, figure(0.880, 0.895, 0.883, 0.899), base)
    faster = of("images_per_s", figure(2.0, 2.02, 2.0), figure(1.0, 1.01, 1.0))
    found = judged([faster, open_, open_, lower])
    assert [each.verdict for each in found] == [FASTER] + [NOT_DECIDED] * 3
    # By hand: the means differ by 0.0875 and 1.0875 points, the margin is 0.5 points.
    either = ((0.000875, 0.05 / 3), (0.004125, 0.05 / 3))
    ways = [either, either, ((0.010875, 0.05 / 3),)]  # what looks worse than the margin: one way
    assert [each.open_ways for each in found[1:]] == [
        tuple(pytest.approx(way) for way in each) for each in ways
    ]


def test_a_small_loss_may_be_shown_and_lie_within_the_margin() -> None:
    base = figure(0.900, 0.905, 0.895)
    [found] = judged([of(ACCURACY, figure(0.898, 0.9031, 0.893), base)])
    assert (found.verdict, found.within_margin) == (WORSE, True)
    [found] = judged([of(ACCURACY, figure(0.888, 0.8931, 0.883), base)])
    assert (found.verdict, found.within_margin) == (WORSE, False)


def test_one_run_has_an_estimate_and_no_verdict() -> None:
    [found] = judged([of("images_per_s", figure(2.0), figure(1.0))])
    assert (found.estimate, found.interval, found.verdict) == (2.0, None, "")
    assert found.reason == "one run each"
    assert effect("images_per_s", figure(2.0), figure(0.0)) is None  # no ratio
    [mixed] = judged([of("images_per_s", figure(2.0), figure(1.0, 1.1))])
    assert mixed.reason == "one run on a side"


def test_disturbed_runs_have_an_estimate_and_the_reason() -> None:
    [found] = judged([of("images_per_s", figure(2.0, 2.0), figure(1.0, 1.0), "stitched")])
    assert (found.estimate, found.verdict, found.reason) == (2.0, "", "stitched")


def test_what_is_the_same_in_every_run_is_identical_and_costs_the_others_nothing() -> None:
    same = of("peak_allocated_mib", figure(512.0, 512.0), figure(512.0, 512.0))
    speed = of("images_per_s", figure(2.0, 2.02, 2.0), figure(1.0, 1.01, 1.0))
    alone = judged([speed])[0]
    found = judged([same, same, same, speed])
    assert [each.verdict for each in found] == [IDENTICAL] * 3 + [FASTER]
    assert found[-1].p_adjusted == alone.p_adjusted
    # The same on average is not the same in every run.
    assert verdict("peak_rss_mib", figure(512.0, 513.0), figure(513.0, 512.0)) == NO_DIFFERENCE


def test_many_comparisons_are_adjusted() -> None:
    speed = of("images_per_s", figure(1.1, 1.12, 1.11), figure(1.0, 1.0, 1.01))
    others = [
        replace(
            of("images_per_s", figure(1.0, 1.1, 0.9), figure(1.0, 0.9, 1.05)), cell=("x", str(i))
        )
        for i in range(40)
    ]
    assert judged([speed])[0].verdict == FASTER
    times = of("train_time_s", figure(1.00, 1.01, 0.99), figure(2.00, 2.02, 1.99))
    assert judged([speed, times])[1].verdict == FASTER
    found = judged([speed, times, *others])
    assert [each.verdict for each in found[:2]] == [NO_DIFFERENCE] * 2


def false_share(
    n: int, tables: int, sds: tuple[float, ...], paired: bool, loss: float = 0.0
) -> tuple[float, float]:
    """In how many tables without any difference a verdict says there is one; and, where every
    accuracy is lower by `loss`, in how many a cell is called not inferior.
    """
    rng = np.random.default_rng(n)
    wrong = spared = 0
    for _ in range(tables):
        drift = rng.normal(0, 0.02, n)
        runs = []
        for i, sd in enumerate(sds):
            speed = np.exp(sd * rng.normal(size=n) + drift)
            memory = 500 + 3 * rng.normal(size=n)
            # As on 360 test images: in steps of a quarter of a point.
            truth = 0.95 - (loss if i else 0.0)
            accuracy = np.round(360 * (truth + 0.005 * rng.normal(size=n))) / 360
            values = zip(FIGURES, (speed, 1 / speed, memory, accuracy), strict=True)
            seeds = [s + (0 if paired else 100 * i) for s in range(n)]
            runs.append(
                {
                    name: Figure(
                        tuple(zip(seeds, column.tolist(), strict=True)),
                        1 / 360 if name == ACCURACY else 0.0,
                    )
                    for name, column in values
                }
            )
        effects = [
            found
            for i, cell in enumerate(runs[1:])
            for name in FIGURES
            if (found := effect(name, cell[name], runs[0][name], cell=("", str(i))))
        ]
        found = judged(effects)
        wrong += any(each.verdict in FALSE for each in found)
        spared += any(each.within_margin for each in found)
    return wrong / tables, spared / tables


EQUAL = (0.01,) * 9
UNEQUAL = (0.03, *(0.01,) * 6, 0.05, 0.1)


@pytest.mark.parametrize(
    ("n", "sds", "paired"),
    [
        (3, EQUAL, True),
        (5, EQUAL, True),
        (10, EQUAL, True),
        (5, UNEQUAL, True),
        (3, UNEQUAL, False),
    ],
)
def test_nine_equal_cells_give_a_false_verdict_in_at_most_six_of_a_hundred_tables(
    n: int, sds: tuple[float, ...], paired: bool
) -> None:
    # All figures of a table together; one standard error of 800 tables is 0.8%.
    wrong, _ = false_share(n, 800, sds, paired)
    assert wrong <= 0.06
    assert wrong > 0 or not paired  # else the tables say nothing


def test_a_loss_of_the_margin_is_seldom_called_not_inferior() -> None:
    _, spared = false_share(5, 800, EQUAL, True, loss=0.005)
    assert spared <= 0.04  # 2.5%, and almost three standard errors of 800 tables


def test_differences_that_are_there_are_found() -> None:
    rng = np.random.default_rng(3)
    found = 0
    for _ in range(100):
        base = [
            of("images_per_s", figure(*np.exp(x + 0.01 * rng.normal(size=5))), theirs)
            for theirs in [figure(*np.exp(0.01 * rng.normal(size=5)))]
            for x in [math.log(1.1), *[0.0] * 7]
        ]
        found += judged(base)[0].verdict == FASTER
    assert found >= 90
