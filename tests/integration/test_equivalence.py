"""The same images in the same order give the same losses, however they are shared."""

import csv
from pathlib import Path

import pytest

from tests.conftest import CommandLine

SAME = (
    "data.batch_size=48",
    "model.dropout=0",
    "model.width=0.1",
    "epochs=1",
    "data.train_images=500",
    "measure.probes=false",
    "track.every_steps=1",
)


def losses(run_dir: Path) -> list[float]:
    with (run_dir / "steps.csv").open(newline="") as file:
        return [float(row["train_loss"]) for row in csv.DictReader(file)]


def test_losses_of_none_dp_and_ddp_with_one_two_and_three_ranks_are_equal(
    command: CommandLine,
) -> None:
    assert command.train("-m", "parallel=none,dp", "name=plain", *SAME).code == 0
    run = command.train("-m", "parallel=ddp", "parallel.devices=1,2,3", "name=ddp", *SAME)
    assert run.code == 0, run.text
    expected = losses(command.run_dir("none-fp32", "plain"))
    assert len(expected) == 500 // 48
    assert expected[0] == pytest.approx(2.3026, abs=0.01)  # ln 10: nothing is learned yet
    found = {"dp": losses(command.run_dir("dp-fp32", "plain"))}
    for path in (command.folder / "outputs" / "ddp").glob("ddp-*"):
        found[path.name] = losses(path)
    assert len(found) == 4
    for name, values in found.items():
        assert values == pytest.approx(expected, abs=1e-5), name


def test_three_ranks_evaluate_each_of_1001_images_once(command: CommandLine) -> None:
    run = command.train(
        "parallel=ddp",
        "parallel.devices=3",
        "data=synthetic",
        "data.train_images=96",
        "data.test_images=1001",
        "data.batch_size=48",
        "model.width=0.1",
        "epochs=1",
    )
    assert run.code == 0, run.text
    (found,) = command.records().values()
    assert found.effective["test_images"] == 1001
    correct = found.metrics["test_accuracy"] * 1001
    assert correct == pytest.approx(round(correct), abs=1e-9)
    evaluated = command("amp_sweep.evaluate", str(command.run_dir("ddp-fp32")))
    assert f"({round(correct)} of 1001), as recorded" in evaluated.out


def test_another_seed_gives_another_first_loss(command: CommandLine) -> None:
    run = command.train("-m", "seed=0,1", "name=seeds", *SAME)
    assert run.code == 0, run.text
    first = [losses(path)[0] for path in (command.folder / "outputs" / "seeds").glob("none-*")]
    assert len(set(first)) == 2
