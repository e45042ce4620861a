"""The article's claims where a parallelism or a precision was run in several variants."""

import math
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from analysis import claims
from analysis.claims import ClaimFound
from analysis.compare import compare
from analysis.frame import load
from tests.analysis.conftest import MakeRun

ONE = {"parallel.devices": 1}
ALONE = {"device_names": ["NVIDIA H200"], "world_size": 1, "replicas": 1}


def found(sweep: Path) -> dict[str, ClaimFound]:
    frame, problems = load(sweep)
    assert problems == []
    (table,) = compare(frame).tables
    return {claim.text.split(":")[0]: claim for claim in claims.check(table)}


def test_a_claim_about_one_device_is_judged_on_the_variant_with_one(
    make_run: MakeRun, article: dict[str, Any]
) -> None:
    for seed in range(3):
        common = {"gpu": True, "settings": article}
        none = {"images_per_s": 1000.0 + seed, "test_accuracy": 0.8}
        sweep = make_run("none", seed=seed, metrics=none, **common).parent
        for parallel, one, two in (("dp", 990.0, 300.0), ("ddp", 1050.0, 1300.0)):
            make_run(parallel, seed=seed, metrics={"images_per_s": two + seed}, **common)
            make_run(
                parallel,
                seed=seed,
                gpu=True,
                settings={**article, **ONE},
                effective=ALONE,
                metrics={"images_per_s": one + seed},
            )
    judged = found(sweep)
    assert judged["DataParallel is no slower than one device"].verdict == "held"
    assert judged["DistributedDataParallel is a little faster than one device"].verdict == "held"


def test_both_sides_of_a_claim_are_of_the_same_variant(
    make_run: MakeRun, article: dict[str, Any]
) -> None:
    both = {"gpu": True, "settings": article}
    gloo = {"gpu": True, "settings": {**article, "parallel.backend": "gloo"}}
    for seed in range(3):
        make_run("ddp", "fp32", seed, metrics={"test_accuracy": 0.8 + 0.0001 * seed}, **gloo)
        make_run("ddp", "autocast", seed, metrics={"test_accuracy": 0.7}, **gloo)
        sweep = make_run("ddp", "fp32", seed, metrics={"test_accuracy": 0.9}, **both).parent
    claim = found(sweep)["with DistributedDataParallel autocast is less accurate than fp32"]
    assert claim.verdict == "held"
    assert claim.evidence.startswith("-10.01 ")


def test_a_variant_that_is_none_of_the_articles_cells_takes_no_claim(
    make_run: MakeRun, article: dict[str, Any]
) -> None:
    bfloat16 = {**article, "precision.autocast": True, "precision.dtype": "bfloat16"}
    for seed in range(2):
        sweep = make_run("none", "fp32", seed, gpu=True, settings=article).parent
        make_run("none", "autocast", seed, gpu=True, settings=bfloat16)
    assert found(sweep) == {}


@pytest.mark.parametrize(
    ("sure", "others", "verdict"),
    [(0.96, 0, "held"), (0.94, 0, "not decided"), (0.96, 1, "not decided"), (0.98, 1, "held")],
)
def test_the_intervals_of_all_claims_hold_together(
    make_run: MakeRun, article: dict[str, Any], sure: float, others: int, verdict: str
) -> None:
    # By hand: the two-sided interval of this confidence of the three log ratios ends at 1.
    sd = 0.05 * math.sqrt(3) / float(stats.t.ppf((1 + sure) / 2, 2))
    for seed, away in enumerate((0.05 - sd, 0.05, 0.05 + sd)):
        speeds = {"fp32": 0.0, "scaler": -away, **({"autocast": away} if others else {})}
        for precision, speed in speeds.items():
            # Without accuracies the claims on them are not tested.
            metrics = {"images_per_s": 1000 * math.exp(speed), "test_accuracy": None}
            sweep = make_run("none", precision, seed, settings=article, metrics=metrics).parent
    claim = found(sweep)["the scaler makes training slower than fp32"]
    assert claim.verdict == verdict
    assert claim.evidence.startswith("0.95x (") and claim.evidence.endswith(") images/s")


def test_a_disturbed_run_decides_no_claim_on_speed(
    make_run: MakeRun, article: dict[str, Any]
) -> None:
    for seed in range(3):
        make_run("none", "fp32", seed, settings=article, metrics={"images_per_s": 1000.0 + seed})
        busy = {"images_per_s": 500.0 + seed, "contended": True}
        sweep = make_run("none", "scaler", seed, settings=article, metrics=busy).parent
    claim = found(sweep)["the scaler makes training slower than fp32"]
    assert claim.verdict == "not decided" and "contended" in claim.evidence
