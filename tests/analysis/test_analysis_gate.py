from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.__main__ import main
from analysis.frame import load
from analysis.gate import BadBaseline, Tolerances, check, failed, grid, legend, read
from analysis.verdicts import ACCURACY
from tests.analysis.synthetic import BASE, TRUTHS, Truth, write_sweep

Make = Callable[..., Path]
Truths = dict[tuple[str, str], Truth]

CELLS: Truths = {at: truth for at, truth in TRUTHS.items() if truth.status == "completed"}


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """The cells.csv of an earlier run with three seeds."""
    sweep = write_sweep(tmp_path, CELLS, 3, sweep="before", random=1)
    assert main([str(sweep), "--no-pictures"]) == 0
    return sweep / "tables" / "cells.csv"


def now(root: Path, changed: Truths, seeds: int = 3, **common: Any) -> Path:
    return write_sweep(root, {**CELLS, **changed}, seeds, sweep="now", random=2, **common)


def outcomes(sweep: Path, baseline: Path, **allowed: float) -> dict[tuple[str, str], str]:
    found = check(load(sweep)[0], read(baseline), Tolerances(**allowed))
    return {(each.cell.split(": ")[1], each.figure): each.verdict for each in found}


def test_a_run_that_did_not_change_passes(
    tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([str(now(tmp_path, {})), "--check", str(baseline)]) == 0
    printed = capsys.readouterr().out
    assert "0 of 24 checks got worse" in printed
    assert "WORSE" not in printed


def test_runs_that_did_not_change_fail_seldom(tmp_path: Path, baseline: Path) -> None:
    noisy = {at: replace(truth, speed_sd=0.1, accuracy_sd=0.01) for at, truth in CELLS.items()}
    before = write_sweep(tmp_path, noisy, 3, sweep="noisy")
    main([str(before), "--no-pictures"])
    old = read(before / "tables" / "cells.csv")
    failures = 0
    for random in range(20):
        sweep = write_sweep(tmp_path / str(random), noisy, 3, random=100 + random)
        failures += failed(check(load(sweep)[0], old, Tolerances()))
    # 5% of 20 is one; the noise of 10% is twice the tolerance of 5%.
    assert failures <= 3


@pytest.mark.parametrize(
    ("changed", "figure"),
    [
        ({"images_per_s": 1600.0}, "images_per_s"),
        ({"memory_mib": 1300.0}, "peak_allocated_mib"),
        ({"accuracy": 0.88}, "test_accuracy"),
    ],
)
def test_what_got_worse_fails_with_a_table(
    tmp_path: Path,
    baseline: Path,
    changed: dict[str, float],
    figure: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    at = ("none", "autocast")
    sweep = now(tmp_path, {at: replace(CELLS[at], **changed)})
    found = outcomes(sweep, baseline)
    assert found.pop(("none x autocast", figure)) == "WORSE"
    assert set(found.values()) == {"ok"}
    capsys.readouterr()
    assert main([str(sweep), "--check", str(baseline)]) == 1
    first = capsys.readouterr().out.splitlines()[2]  # the worst row comes first
    assert "none x autocast" in first
    assert "WORSE" in first


@pytest.mark.parametrize(
    ("changed", "allowed"),
    [
        ({"images_per_s": 1600.0}, ("speed=20%", "speed=0.05")),
        ({"memory_mib": 1300.0}, ("memory=0.2", "speed=0.2")),
        ({"accuracy": 0.88}, ("accuracy=0.03", "accuracy=0.01")),
    ],
)
def test_a_tolerance_allows_a_loss_of_its_own_figure(
    tmp_path: Path, baseline: Path, changed: dict[str, float], allowed: tuple[str, str]
) -> None:
    at = ("none", "autocast")
    sweep = now(tmp_path, {at: replace(CELLS[at], **changed)})
    for tolerance, code in zip(allowed, (0, 1), strict=True):
        assert main([str(sweep), "--check", str(baseline), "--tolerance", tolerance]) == code


def test_a_change_within_the_noise_passes(tmp_path: Path, baseline: Path) -> None:
    at = ("none", "autocast")
    # A tenth slower on average, but runs differ by a third.
    sweep = now(tmp_path, {at: replace(CELLS[at], images_per_s=1600.0, speed_sd=0.3)})
    found = check(load(sweep)[0], read(baseline), Tolerances())
    [one] = [c for c in found if "none x autocast" in c.cell and c.figure == "images_per_s"]
    assert one.effect is not None
    assert abs(one.effect.estimate - 1) > 0.05
    assert (one.verdict, one.why) == ("ok", "within the noise")


def test_what_got_better_is_said_and_passes(tmp_path: Path, baseline: Path) -> None:
    at = ("none", "fp32")
    sweep = now(tmp_path, {at: replace(BASE, images_per_s=1500.0)})
    assert outcomes(sweep, baseline)["none x fp32", "images_per_s"] == "improved"
    assert main([str(sweep), "--check", str(baseline)]) == 0


def test_single_runs_are_held_against_the_tolerance_alone(tmp_path: Path, baseline: Path) -> None:
    at = ("none", "autocast")
    slow = now(tmp_path, {at: replace(CELLS[at], images_per_s=1500.0)}, seeds=1)
    found = check(load(slow)[0], read(baseline), Tolerances())
    [one] = [c for c in found if "none x autocast" in c.cell and c.figure == "images_per_s"]
    assert one.verdict == "WORSE"
    assert "the noise is not known" in one.why


@pytest.mark.parametrize(
    ("loss", "verdict"), [(0.008, "ok"), (0.009, "WORSE"), (-0.009, "improved")]
)
def test_accuracies_of_single_runs_may_differ_by_what_their_test_images_can_tell(
    tmp_path: Path, loss: float, verdict: str
) -> None:
    sides = []
    for accuracy in (0.9, 0.9 - loss):
        exact = {("none", "fp32"): replace(BASE, accuracy=accuracy, accuracy_sd=0.0)}
        sides.append(load(write_sweep(tmp_path / str(accuracy), exact, 1))[0])
    # By hand: two standard errors, each of 0.9 * 0.1 / 10,000 images and its like, are 0.0085.
    found = {c.figure: c for c in check(sides[1], sides[0], Tolerances())}[ACCURACY]
    assert found.verdict == verdict
    [row] = grid([found]).rows
    assert row[2:4] == [["0.9000"], [f"{0.9 - loss:.4f}"]]


@pytest.mark.parametrize("status", ["failed", "oom", "diverged", "pending"])
def test_a_cell_that_was_completed_and_is_not_now_fails(
    tmp_path: Path, baseline: Path, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = now(tmp_path, {("ddp", "fp32"): replace(BASE, status=status)})
    capsys.readouterr()
    assert main([str(sweep), "--check", str(baseline)]) == 1
    assert f"3 of 3 {status}" in capsys.readouterr().out


def test_cells_of_one_side_only_are_listed_and_fail_nothing(
    tmp_path: Path, baseline: Path, make_run: Make
) -> None:
    make_run("none", "bf16", sweep="now", gpu=True)
    sweep = write_sweep(tmp_path, {("none", "fp32"): BASE}, 3, sweep="now", random=2)
    found = check(load(sweep)[0], read(baseline), Tolerances())
    whys = {each.cell.split(": ")[1]: each.why for each in found if each.verdict == "not compared"}
    assert whys["none x bf16"] == "not in the baseline"
    assert whys["ddp x fp32"] == "not run now"
    assert not failed(found)


def test_another_gpu_is_not_compared_and_is_no_pass(
    tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = now(tmp_path, {}, effective={"device_names": ["NVIDIA A100"]})
    capsys.readouterr()
    assert main([str(sweep), "--check", str(baseline)]) == 2
    printed = capsys.readouterr()
    assert "device_name NVIDIA A100 against NVIDIA H200" in printed.out
    assert "no cell can be compared" in printed.err


def test_a_folder_without_runs_is_no_cell_that_got_worse(tmp_path: Path, baseline: Path) -> None:
    assert main([str(tmp_path / "nowhere"), "--check", str(baseline)]) == 2


def test_another_pytorch_is_compared(tmp_path: Path, baseline: Path) -> None:
    sweep = now(tmp_path, {}, environment={"torch": "2.15.0"})
    assert set(outcomes(sweep, baseline).values()) == {"ok"}


def test_a_setting_that_the_baseline_does_not_know_is_no_other_run(
    tmp_path: Path, baseline: Path
) -> None:
    lines = read(baseline).drop(columns=["config.model.dropout"])
    lines.to_csv(baseline, index=False)
    assert "ok" in outcomes(now(tmp_path, {}), baseline).values()


def test_an_empty_setting_is_the_same_in_a_file_of_commas(tmp_path: Path) -> None:
    frame = load(write_sweep(tmp_path, {("none", "fp32"): BASE}, 2))[0]
    frame["config.scheduler.name"] = pd.array([""] * 2, dtype="string")
    path = tmp_path / "cells.csv"
    frame.to_csv(path, index=False)
    assert {each.verdict for each in check(frame, read(path), Tolerances())} == {"ok"}


def test_a_baseline_that_pandas_saved_again_is_the_same_baseline(
    tmp_path: Path, baseline: Path
) -> None:
    before = outcomes(now(tmp_path, {}), baseline)
    saved = pd.read_csv(baseline)
    # A column of whole numbers with a gap becomes one of floats.
    saved["config.data.batch_size"] = saved["config.data.batch_size"].astype(float)
    saved.to_csv(baseline)
    text = baseline.read_text()
    assert "True" in text
    assert "64.0" in text
    assert outcomes(tmp_path / "now", baseline) == before
    assert "not compared" not in before.values()


def test_settings_that_differ_stay_apart_in_every_notation(tmp_path: Path) -> None:
    write_sweep(tmp_path, CELLS, 1, sweep="one", settings={"data.normalize": True})
    write_sweep(tmp_path, CELLS, 1, sweep="two", settings={"data.normalize": False})
    found = check(load(tmp_path / "one")[0], load(tmp_path / "two")[0], Tolerances())
    assert {each.verdict for each in found} == {"not compared"}


def test_the_gates_table_says_what_its_columns_are(
    tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main([str(now(tmp_path, {})), "--check", str(baseline), "--alpha", "0.1"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "of an accuracy now minus the baseline, in points (hundredths)" in printed
    assert "95% interval of each change alone (Welch t and paired t over the seeds)" in printed
    assert "one-sided, 10% over all checks, Holm" in printed


def test_single_runs_have_no_interval_to_explain(tmp_path: Path) -> None:
    before = load(write_sweep(tmp_path, CELLS, 1))[0]
    [told] = legend(check(before, before, Tolerances()))
    assert told.startswith("change: ")
    assert legend([]) == []


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ({}, {"segments": 2}, "stitched"),
        ({"segments": 2}, {}, "baseline stitched"),
        ({}, {"environment": {"cpu": "AMD EPYC"}}, "another host"),
    ],
)
def test_disturbed_speeds_are_not_compared(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], why: str
) -> None:
    one = {("none", "fp32"): BASE}
    old = load(write_sweep(tmp_path, one, 2, sweep="before", **before))[0]
    found = check(load(write_sweep(tmp_path, one, 2, sweep="now", **after))[0], old, Tolerances())
    speed = next(each for each in found if each.figure == "images_per_s")
    assert speed.verdict == "not compared" and speed.why.startswith(why)
    assert next(each for each in found if each.figure == ACCURACY).verdict == "ok"


def test_another_number_of_devices_is_not_compared(tmp_path: Path) -> None:
    one = {("ddp", "fp32"): BASE}
    old = load(write_sweep(tmp_path, one, 1, sweep="before"))[0]
    two = {"world_size": 2, "device_names": ["NVIDIA H200"] * 2}
    [found] = check(load(write_sweep(tmp_path, one, 1, effective=two))[0], old, Tolerances())
    assert (found.verdict, found.why) == ("not compared", "devices 2 against 1")


def test_one_seed_of_a_cell_that_failed_is_worse(tmp_path: Path, make_run: Make) -> None:
    old = load(write_sweep(tmp_path, {("none", "fp32"): BASE}, 2, sweep="before"))[0]
    sweep = write_sweep(tmp_path, {("none", "fp32"): BASE}, 1, sweep="now")
    make_run(seed=1, sweep="now", gpu=True, status="failed")
    found = check(load(sweep)[0], old, Tolerances())
    assert [(each.figure, each.why) for each in found if each.verdict == "WORSE"] == [
        ("", "1 of 2 failed")
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        ("a,b\n1,2\n", "no cells.csv"),
        ("", "no cells.csv"),
        (
            "status,run_dir,parallel,precision,seed,images_per_s\ncompleted,x,none,fp32,0,fast\n",
            "does not fit",
        ),
    ],
)
def test_a_baseline_that_cannot_be_used_is_wrong_usage(
    tmp_path: Path, make_run: Make, content: str | None, told: str, capsys: Any
) -> None:
    path = tmp_path / "cells.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadBaseline, match=told):
        read(path)
    with pytest.raises(SystemExit) as ended:
        main([str(make_run()), "--check", str(path)])
    assert ended.value.code == 2
    assert "argument --check" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["speed", "speed=fast", "speed=2", "power=0.1", "speed=-1"])
def test_a_tolerance_that_makes_no_sense_is_wrong_usage(make_run: Make, value: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(make_run()), "--check", "x", "--tolerance", value])
    assert ended.value.code == 2


def test_a_tolerance_without_a_baseline_is_wrong_usage(make_run: Make) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(make_run()), "--tolerance", "speed=0.1"])
    assert ended.value.code == 2


def test_the_gate_writes_nothing(tmp_path: Path, baseline: Path) -> None:
    sweep = now(tmp_path, {})
    main([str(sweep), "--check", str(baseline)])
    assert not (sweep / "tables").exists()


def test_a_figure_that_is_gone_is_worse(baseline: Path) -> None:
    frame, old = load(baseline.parents[1])[0], read(baseline)
    frame["images_per_s"] = pd.Series(pd.NA, index=frame.index, dtype="Float64")
    found = check(frame, old, Tolerances())
    gone = {each.figure for each in found if each.verdict == "WORSE"}
    assert gone == {"images_per_s"} and failed(found)
    assert {each.why for each in found if each.verdict == "WORSE"} == {"the figure is gone"}


def test_a_figure_compared_in_no_cell_is_named(
    tmp_path: Path, baseline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = pd.read_csv(baseline, dtype=str)
    old["images_per_s"] = ""
    old.to_csv(tmp_path / "old.csv", index=False)
    capsys.readouterr()
    assert main([str(baseline.parents[1]), "--check", str(tmp_path / "old.csv")]) == 0
    assert "images/s: compared in no cell" in capsys.readouterr().out


def test_a_baseline_without_columns_of_this_version_is_still_read_and_compared(
    tmp_path: Path, baseline: Path
) -> None:
    old = pd.read_csv(baseline, dtype=str)
    old.drop(columns=["cpu", "cores", "threads"]).to_csv(tmp_path / "old.csv", index=False)
    found = check(load(baseline.parents[1])[0], read(tmp_path / "old.csv"), Tolerances())
    assert "ok" in {each.verdict for each in found} and not failed(found)


def test_a_number_beyond_its_type_is_a_clear_error(tmp_path: Path, baseline: Path) -> None:
    old = pd.read_csv(baseline, dtype=str)
    old.loc[0, "seed"] = "9" * 23
    old.to_csv(tmp_path / "old.csv", index=False)
    with pytest.raises(BadBaseline):
        read(tmp_path / "old.csv")
