import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import analysis
from analysis.answer import TableAnswer, answer, reasons, sentences
from analysis.compare import compare
from analysis.comparison import Table
from analysis.frame import load
from analysis.statistics import Figure
from analysis.texts import estimate, unjudged
from analysis.verdicts import effect
from tests.analysis.synthetic import ARTICLE, BASE, TRUTHS, Truth, write_sweep

Make = Callable[..., Path]

H200: dict[str, Any] = {"gpu": True}


def answered(*dirs: Path) -> tuple[Table, TableAnswer]:
    comparison = compare(load(*dirs)[0])
    [table], [said] = comparison.tables, answer(comparison).tables
    return table, said


def best(said: TableAnswer, question: str) -> Any:
    return next(each for each in said.bests if each.question == question)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> tuple[Table, TableAnswer]:
    """Five seeds of every cell of the sweep whose truths are known."""
    return answered(write_sweep(tmp_path_factory.mktemp("sweep"), TRUTHS, 5))


def test_every_verdict_on_known_truths_is_right(five: tuple[Table, TableAnswer]) -> None:
    table, _ = five
    base = TRUTHS["none", "fp32"]
    for at, truth in TRUTHS.items():
        effects = table.cells[at].effects
        if truth.status != "completed" or at == ("none", "fp32"):
            continue
        ratio = truth.images_per_s / base.images_per_s
        speed = "faster" if ratio > 1 else "slower" if ratio < 1 else "no difference shown"
        assert effects["images_per_s"].verdict == speed, at
        assert effects["train_time_s"].verdict == speed, at
        saved = truth.memory_mib < base.memory_mib
        assert effects[table.memory].verdict == ("less" if saved else "identical"), at
        worse = truth.accuracy < base.accuracy
        verdict = effects["test_accuracy"].verdict
        assert (verdict == "worse") == worse, at
        assert verdict in ("worse", "not inferior", "not decided"), at


def test_the_intervals_of_known_truths_hold_them(tmp_path: Path) -> None:
    held = tested = 0
    for random in range(6):
        sweep = write_sweep(tmp_path / str(random), TRUTHS, 5, random=random)
        table, _ = answered(sweep)
        for at, cell in table.cells.items():
            if (found := cell.effects.get("images_per_s")) and found.interval:
                tested += 1
                held += TRUTHS[at].images_per_s / BASE.images_per_s in found.interval
    assert tested == 42
    assert held >= 36  # 95% of 42 are 40; below 36 is one in a hundred


def test_the_fastest_is_named_with_every_cell_that_may_be_as_fast(
    five: tuple[Table, TableAnswer],
) -> None:
    _, said = five
    fastest = best(said, "Fastest")
    assert {fastest.best, *fastest.ties} == {("none", "autocast"), ("dp", "autocast")}
    assert fastest.decided
    assert "that of none x fp32" in fastest.text
    least = best(said, "Least memory")
    small = {at for at, truth in TRUTHS.items() if truth.memory_mib == 1200}
    assert {least.best, *least.ties} == small
    accurate = best(said, "Most accurate")
    assert ("ddp", "scaler") not in {accurate.best, *accurate.ties}


def test_the_trade_off_keeps_the_accuracy_and_stands_on_the_front(
    five: tuple[Table, TableAnswer],
) -> None:
    _, said = five
    # The truth: 1.8 times the speed, the least memory, no loss.
    assert said.trade_off.best in {("none", "autocast"), ("dp", "autocast")}
    assert said.trade_off.best in said.front
    assert set(said.front) <= {("none", "autocast"), ("dp", "autocast")}


def test_a_failed_cell_is_named_and_ranked_nowhere(five: tuple[Table, TableAnswer]) -> None:
    table, said = five
    failed = ("dp", "scaler")
    assert table.cells[failed].effects == {}
    assert all(failed != each.best and failed not in each.ties for each in said.bests)
    assert "without figures, FAILED: dp x scaler" in said.remarks
    assert next(line for line in said.lines if line.at == failed).text == "FAILED"


def test_the_sentences_come_in_the_order_in_which_one_asks(
    five: tuple[Table, TableAnswer],
) -> None:
    questions = [what for what, _ in sentences(five[1])]
    assert questions[:4] == ["Fastest", "Least memory", "Most accurate", "Best trade-off"]


def test_single_runs_have_an_order_and_no_verdict(tmp_path: Path) -> None:
    table, said = answered(write_sweep(tmp_path, TRUTHS, 1))
    verdicts = {e.verdict for cell in table.cells.values() for e in cell.effects.values()}
    assert verdicts == {""}
    assert table.cells["none", "autocast"].speedup is not None
    fastest = best(said, "Fastest")
    assert not fastest.decided
    assert fastest.best in {("none", "autocast"), ("dp", "autocast")}
    assert any("one run per cell" in text for text in said.remarks)


def test_two_gpus_are_two_answers(tmp_path: Path) -> None:
    first = write_sweep(tmp_path, TRUTHS, 2, sweep="a")
    other = {"device_names": ["NVIDIA A100"]}
    second = write_sweep(tmp_path, TRUTHS, 2, sweep="b", effective=other)
    comparison = compare(load(first, second)[0])
    assert [table.key["device_name"] for table in comparison.tables] == [
        "NVIDIA A100",
        "NVIDIA H200",
    ]
    for table, said in zip(comparison.tables, answer(comparison).tables, strict=True):
        # Each relates to its own baseline, never to the other GPU's.
        assert table.cells["none", "fp32"].speedup == 1.0
        assert said.title == table.title


def test_the_truly_best_cell_is_among_those_named(tmp_path: Path) -> None:
    """Nine cells, the best ahead by little: it is named in 95% of all sweeps or more."""
    cells = {at: replace(BASE, images_per_s=1000.0, speed_sd=0.02) for at in TRUTHS}
    cells["ddp", "fp32"] = Truth(images_per_s=1010.0, speed_sd=0.02)
    named = several = 0
    for random in range(25):
        sweep = write_sweep(tmp_path / str(random), cells, 4, random=random)
        fastest = best(answered(sweep)[1], "Fastest")
        named += ("ddp", "fp32") in {fastest.best, *fastest.ties}
        several += len(fastest.ties) > 0
    assert named >= 23
    assert several >= 20  # else nothing was open


@pytest.mark.parametrize(
    ("sure", "others", "tied"),
    [(0.96, 0, False), (0.94, 0, True), (0.96, 1, True), (0.98, 1, False)],
)
@pytest.mark.parametrize(
    ("question", "figure", "away"),
    [
        ("Fastest", "images_per_s", 0.05),
        ("Least memory", "peak_rss_mib", -0.05),
        ("Most accurate", "test_accuracy", 0.003),  # less than the margin: single runs would tie
    ],
)
def test_a_cell_is_tied_with_the_best_unless_a_one_sided_test_sets_it_apart(
    make_run: Make, question: str, figure: str, away: float, sure: float, others: int, tied: bool
) -> None:
    # Three pairs whose differences have this t, one-sided; Bonferroni counts the other cells.
    sd = abs(away) * 3**0.5 / float(stats.t.ppf(sure, 2))
    accuracy = figure == "test_accuracy"
    for seed, at in enumerate((away - sd, away, away + sd)):
        images = {"effective": {"test_images": 10**9}}
        values = {"none": 0.0, "dp": at, **({"ddp": -20 * away - at} if others else {})}
        for parallel, value in values.items():
            told = 0.5 + value if accuracy else 100.0 * float(np.exp(value))
            sweep = make_run(parallel, seed=seed, metrics={figure: told}, **images).parent
    found = best(answered(sweep)[1], question)
    assert found.best == ("dp", "fp32")
    assert found.ties == ((("none", "fp32"),) if tied else ())


def test_what_is_half_a_percent_slower_is_as_fast_and_what_is_more_is_not(make_run: Make) -> None:
    for seed in range(3):
        for parallel, speed in (("none", 9951.0), ("dp", 9949.0), ("ddp", 10000.0)):
            sweep = make_run(parallel, seed=seed, metrics={"images_per_s": speed}).parent
    fastest = best(answered(sweep)[1], "Fastest")
    assert (fastest.best, fastest.ties) == (("ddp", "fp32"), (("none", "fp32"),))


def test_disturbed_times_have_no_verdict_and_say_why(make_matrix: Make) -> None:
    for seed in (0, 1, 2):
        sweep = make_matrix(
            seed=seed,
            gpu=True,
            metrics={"images_per_s": 2000.0 + seed},
            but={
                # Killed before its first checkpoint, and begun anew.
                ("none", "autocast"): {
                    "metrics": {"images_per_s": 4000.0 + seed},
                    "segments": [{"from_epoch": 0, "from_step": 0}] * 2,
                },
                ("none", "scaler"): {"segments": 2 if seed == 1 else 1},
                ("dp", "fp32"): {"metrics": {"contended": True, "images_per_s": 9000.0}},
                ("dp", "autocast"): {"notes": ("paused: stood still for 9.0 s while it trained",)},
                ("dp", "scaler"): {"environment": {"cpu": f"CPU {seed % 2}"}},
                ("ddp", "fp32"): {"environment": {"cpu": "AMD"}},
                ("ddp", "autocast"): {"environment": {"cores": 4}},
                ("ddp", "scaler"): {"effective": {"device_names": ["A", "B"]}},
            },
        )
    comparison = compare(load(sweep)[0])
    table = next(t for t in comparison.tables if t.baseline)
    reasons = {at: c.effects["images_per_s"].reason for at, c in table.cells.items() if c.effects}
    assert reasons["none", "autocast"] == ""
    assert reasons["none", "scaler"] == "stitched: 1 of 3 runs were interrupted and resumed"
    assert reasons["dp", "fp32"] == "contended: 3 of 3 runs were disturbed by other processes"
    assert reasons["dp", "autocast"] == "paused: 3 of 3 runs were halted for a while"
    assert reasons["dp", "scaler"] == "mixed hardware: CPU 0 and CPU 1"
    assert reasons["ddp", "fp32"] == "mixed hardware: AMD against Intel Xeon"
    four = "mixed hardware: Intel Xeon, 4 cores against Intel Xeon"
    assert reasons["ddp", "autocast"] == four
    [other] = (t.cells["ddp", "scaler"] for t in comparison.tables if t is not table)
    assert other.flaws == ("mixed hardware: devices of different kinds in one run",)
    for at in (("none", "scaler"), ("dp", "fp32"), ("ddp", "fp32")):
        effects = table.cells[at].effects
        assert effects["images_per_s"].verdict == ""
        assert effects["test_accuracy"].verdict != ""  # it does not depend on the clock
    fastest = best(answer(comparison).tables[comparison.tables.index(table)], "Fastest")
    assert fastest.best == ("none", "autocast")  # not the contended one
    assert ("dp", "fp32") in dict(fastest.unranked)
    behind = "none x scaler, dp x autocast, dp x scaler, ddp x fp32, ddp x autocast"
    assert fastest.text.endswith(f"; without a verdict: {behind}")


CONTENDED = "contended: its run was disturbed by other processes"


def test_the_best_mean_is_named_first_even_where_it_has_no_verdict(make_run: Make) -> None:
    busy = {"images_per_s": 4000.0, "contended": True}
    for seed in (0, 1):
        make_run(seed=seed, metrics={**busy, "images_per_s": 4000.0 + seed})
        sweep = make_run("ddp", seed=seed, metrics={"images_per_s": 3000.0 + seed}).parent
    why = "contended: 2 of 2 runs were disturbed by other processes"
    table, said = answered(sweep)
    assert table.cells["ddp", "fp32"].effects["images_per_s"].reason == f"none x fp32: {why}"
    fastest = best(said, "Fastest")
    assert fastest.text == (
        f"none x fp32, 4,000 images/s, without a verdict ({why}); "
        "of the other cells ddp x fp32, 3,000 images/s (0.75x that of none x fp32)"
    )
    assert fastest.ahead == ((("none", "fp32"), why),)
    assert said.trade_off.best == ("none", "fp32")
    assert f"without a verdict on its speed ({why})" in said.trade_off.text
    assert not said.trade_off.decided
    assert "contended)" in said.front_text


def test_one_run_ahead_of_repeated_ones_is_named_first_and_measures_nothing(
    make_run: Make,
) -> None:
    make_run("ddp", metrics={"images_per_s": 9000.0})
    for seed in (0, 1, 2):
        make_run(seed=seed, metrics={"images_per_s": 1000.0 + seed})
        sweep = make_run("dp", seed=seed, metrics={"images_per_s": 3000.0 + seed}).parent
    fastest = best(answered(sweep)[1], "Fastest")
    assert fastest.text.startswith("ddp x fp32, 9,000 images/s")
    assert "without a verdict (one run); of the other cells dp x fp32" in fastest.text
    assert fastest.best == ("dp", "fp32")
    assert fastest.decided


def test_disturbed_single_runs_are_named(make_run: Make) -> None:
    make_run(metrics={"contended": True})
    make_run("dp", metrics={"contended": True})
    make_run("none", "scaler", segments=2)
    sweep = make_run("ddp").parent
    _, said = answered(sweep)
    told = "times and speeds without a verdict, "
    assert f"{told}{CONTENDED}: none x fp32, dp x fp32" in said.remarks
    assert f"{told}stitched: its run was interrupted and resumed: none x scaler" in said.remarks
    assert any("one run per cell" in text for text in said.remarks)


def test_where_every_run_was_disturbed_the_best_says_so(make_run: Make) -> None:
    make_run(metrics={"contended": True})
    sweep = make_run("ddp", metrics={"contended": True}).parent
    fastest = best(answered(sweep)[1], "Fastest")
    assert fastest.best == ("ddp", "fp32")
    assert fastest.text.endswith(f"without a verdict ({CONTENDED})")


def test_the_diagnosis_stands_with_its_evidence_where_there_is_one(make_matrix: Make) -> None:
    bound = {"diagnosis": "launch-bound", "diagnosis_evidence": "gaps take 60%"}
    open_ = {"diagnosis": "undetermined", "diagnosis_evidence": "no figures"}
    sweep = make_matrix(
        but={
            ("none", "autocast"): {"metrics": bound},
            ("none", "scaler"): {"metrics": open_},
            ("dp", "fp32"): {"metrics": {"data_wait_frac": 0.8}},
        }
    )
    _, said = answered(sweep)
    assert reasons(said) == [
        ("none x autocast", "launch-bound: gaps take 60%"),
        (
            "dp x fp32",
            "input-bound: the device waits for its input 80% of the time, whatever the precision",
        ),
    ]


def test_why_there_is_no_verdict_is_told_once_per_reason(make_run: Make) -> None:
    for seed in (0, 1):
        make_run(seed=seed, metrics={"images_per_s": 1000.0 + seed})
        make_run("dp", seed=seed, metrics={"images_per_s": 2000.0 + seed})
    make_run("ddp", "scaler")
    sweep = make_run("ddp", "autocast").parent
    table, _ = answered(sweep)
    assert unjudged(table) == [
        "no verdict on images/s, time, RSS MiB, accuracy: one run on a side "
        "(ddp x autocast, ddp x scaler)"
    ]


def test_the_articles_claims_are_judged_one_by_one(tmp_path: Path) -> None:
    truths = dict(TRUTHS)
    truths["dp", "scaler"] = replace(BASE, accuracy=0.95)
    truths["ddp", "autocast"] = replace(BASE, accuracy=0.895)
    _, said = answered(write_sweep(tmp_path, truths, 5, settings=ARTICLE))
    found = {claim.text.split(":")[0]: claim.verdict for claim in said.claims}
    assert found == {
        "autocast hardly helps": "not held",  # 1.8 times as fast
        "the scaler makes training slower than fp32": "not held",  # 1.5 times as fast
        "DataParallel is no slower than one device": "held",  # equal
        "DistributedDataParallel is a little faster than one device": "not held",  # slower
        "autocast is more accurate than fp32": "not held",  # equal, sd 0.2 points
        "with DataParallel the scaler is more accurate than fp32": "held",  # five points
        "with DistributedDataParallel autocast is less accurate than fp32": "not decided",
    }


def test_single_runs_and_more_devices_decide_no_claim(tmp_path: Path) -> None:
    _, single = answered(write_sweep(tmp_path, TRUTHS, 1, sweep="one", settings=ARTICLE))
    assert {claim.verdict for claim in single.claims} == {"not decided"}
    assert any("one run each" in claim.evidence for claim in single.claims)
    two = {"world_size": 2, "replicas": 2}
    _, many = answered(
        write_sweep(tmp_path, TRUTHS, 5, sweep="two", settings=ARTICLE, effective=two)
    )
    speeds = [claim for claim in many.claims if "minutes" in claim.text]
    assert all("devices" in claim.evidence for claim in speeds)
    assert {claim.verdict for claim in speeds} == {"not decided"}


def test_other_settings_have_no_claims(five: tuple[Table, TableAnswer]) -> None:
    assert five[1].claims == ()


@pytest.mark.parametrize(("seeds", "needed"), [(1, False), (2, True)])
def test_scipy_is_loaded_only_where_figures_are_repeated(
    tmp_path: Path, seeds: int, needed: bool
) -> None:
    sweep = write_sweep(tmp_path, TRUTHS, seeds)
    text = (
        "import sys; from analysis.__main__ import main; "
        f"assert main([{str(sweep)!r}, '--no-pictures']) == 0; "
        "print('scipy.special' in sys.modules, 'scipy.stats' in sys.modules, "
        "'matplotlib' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(analysis.__file__).parents[1],
    )
    assert done.stdout.splitlines()[-1] == f"{needed} False False"


def test_a_sweep_without_any_figure_has_an_answer_too(make_matrix: Make) -> None:
    _, said = answered(make_matrix(status="pending"))
    assert all(each.best is None for each in said.bests)
    assert said.front == ()
    assert sentences(said) == []
    assert any(text.startswith("without figures, PENDING") for text in said.remarks)


def test_an_interval_that_says_nothing_is_short() -> None:
    wild = effect("images_per_s", Figure(((0, 1.0), (1, 900.0))), Figure(((0, 30.0), (1, 31.0))))
    assert wild is not None
    assert estimate(wild) == ["0.98x", "(0.00 to over 1,000)"]


def test_single_accuracies_within_the_test_images_own_error_are_no_loss(make_run: Make) -> None:
    images = {"effective": {"test_images": 360}}
    make_run(gpu=True, metrics={"test_accuracy": 0.95}, **images)
    # Two points lower; two standard errors of 360 images are 3.4 points by hand.
    error = 2 * np.sqrt(0.95 * 0.05 / 360 + 0.93 * 0.07 / 360)
    assert error == pytest.approx(0.035, abs=0.001)
    sweep = make_run("none", "autocast", gpu=True, metrics={"test_accuracy": 0.93}, **images).parent
    _, said = answered(sweep)
    assert said.trade_off.best == ("none", "autocast")
    assert best(said, "Most accurate").ties == (("none", "autocast"),)
    make_run("none", "autocast", gpu=True, metrics={"test_accuracy": 0.90}, **images)
    _, said = answered(sweep)
    assert said.trade_off.best == ("none", "fp32")
    assert best(said, "Most accurate").ties == ()


@pytest.mark.parametrize(("gpu", "chosen"), [(True, "none"), (False, "ddp")])
def test_the_trade_off_counts_the_speed_of_one_gpu_and_of_all_processes(
    make_run: Make, gpu: bool, chosen: str
) -> None:
    memory = "peak_allocated_mib" if gpu else "peak_rss_mib"
    make_run("none", gpu=gpu, metrics={"images_per_s": 1000.0, memory: 590.0})
    own = {"images_per_s": 1500.0, memory: 600.0}
    make_run("ddp", gpu=gpu, metrics=own)
    # Twice the memory for a third more speed.
    sweep = make_run("dp", gpu=gpu, metrics={"images_per_s": 2000.0, memory: 1200.0}).parent
    _, said = answered(sweep)
    assert said.front == (("dp", "fp32"), ("ddp", "fp32"), ("none", "fp32"))  # by speed
    assert said.trade_off.best == (chosen, "fp32")
    assert not said.trade_off.decided


def test_a_loss_within_the_margin_is_none_for_the_trade_off(make_run: Make) -> None:
    for seed in range(3):
        here = 0.90 + 0.01 * seed
        lower = here - 0.002 - 1e-5 * seed
        for parallel, speed, accuracy in (("none", 1e3, here), ("dp", 2e3, lower)):
            figures = {"images_per_s": speed + seed, "test_accuracy": accuracy}
            sweep = make_run(parallel, seed=seed, metrics=figures).parent
    table, said = answered(sweep)
    assert table.cells["dp", "fp32"].effects["test_accuracy"].verdict == "worse"
    assert said.trade_off.best == ("dp", "fp32")
