"""The bare matrix, small: nine real cells through the command line."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DataParallel
from torch.utils.tensorboard.summary import hparams  # noqa: F401  (TensorBoard is installed)

from amp_sweep import models, record
from tests.conftest import CommandLine, Run

ALL = ("-m", "parallel=none,dp,ddp", "precision=fp32,autocast,scaler")
# Seven whole batches an epoch and a rest; an odd number, which two ranks cannot halve.
IMAGES = ("data.train_images=500", "data.test_images=151")
PRICE = "measure.price_per_hour=2"  # changes no identity
SMALL = ("model.width=0.1", "epochs=2", "track.every_steps=5", PRICE, *IMAGES)
CELLS = [f"{p}-{q}-s0" for p in ("none", "dp", "ddp") for q in ("fp32", "autocast", "scaler")]


@pytest.fixture(scope="module")
def matrix(
    tmp_path_factory: pytest.TempPathFactory, make_command_line: Callable[[Path], CommandLine]
) -> tuple[CommandLine, Run]:
    command = make_command_line(tmp_path_factory.mktemp("matrix"))
    return command, command.train(*ALL, *SMALL)


def weights(command: CommandLine, cell: str) -> dict[str, torch.Tensor]:
    path = command.run_dir(cell) / "checkpoints" / "final.pt"
    state: dict[str, torch.Tensor] = torch.load(path, weights_only=True)["weights"]
    return state


def test_all_nine_cells_complete_and_the_table_shows_them(
    matrix: tuple[CommandLine, Run],
) -> None:
    command, run = matrix
    assert run.code == 0, run.text
    assert "Warning:" not in run.err, run.err
    records = command.records()
    assert sorted(records) == sorted(CELLS)
    assert {item.status for item in records.values()} == {record.COMPLETED}
    assert "9 of 9 cells completed" in run.out
    table = [line.split()[:2] for line in run.out.splitlines()]
    for cell in CELLS:
        assert cell.split("-")[:2] in table


def test_the_record_says_what_really_ran(matrix: tuple[CommandLine, Run]) -> None:
    records = matrix[0].records()
    for cell, item in records.items():
        parallel, precision, _ = cell.split("-")
        effective, metrics = item.effective, item.metrics
        half = precision != "fp32"
        assert effective["observed_dtypes"] == (["bfloat16"] if half else ["float32"])
        assert effective["autocast_dtype"] == ("bfloat16" if half else None)
        assert effective["scaler_enabled"] == (precision == "scaler")
        assert effective["world_size"] == (2 if parallel == "ddp" else 1)
        assert effective["per_device_batch"] == (32 if parallel == "ddp" else 64)
        assert effective["steps"] == 2 * (500 // 64)
        assert (effective["train_images"], effective["test_images"]) == (500, 151)
        assert len(metrics["peak_rss_mib"]) == effective["world_size"]
        assert metrics["train_time_s"] == pytest.approx(
            sum(row["train_time_s"] for row in item.epochs)
        )
        assert metrics["wall_time_s"] > metrics["train_time_s"] > 0
        assert metrics["images_per_s"] == pytest.approx(item.epochs[1]["images_per_s"])
        assert metrics["test_accuracy"] == item.epochs[-1]["test_accuracy"]
        assert metrics["optimizer_steps"] == effective["steps"]
        assert metrics["scaler_skipped_steps"] == (0 if precision == "scaler" else None)
        assert item.segments[0]["from_epoch"] == 0 and item.segments[0]["to_epoch"] == 2
        assert item.environment["torch"] == torch.__version__
        no_effect = any(note.startswith("no effect here: dp") for note in item.notes)
        assert no_effect == (parallel == "dp")


def test_all_cells_saw_the_same_data(matrix: tuple[CommandLine, Run]) -> None:
    records = matrix[0].records().values()
    assert len({item.effective["data_digest"] for item in records}) == 1


def test_dataparallel_without_gpus_is_the_plain_module_bit_for_bit(
    matrix: tuple[CommandLine, Run],
) -> None:
    none, dp = weights(matrix[0], "none-fp32"), weights(matrix[0], "dp-fp32")
    assert all(torch.equal(none[key], dp[key]) for key in none)


@pytest.mark.parametrize("parallel", ["none", "ddp"])
def test_the_cpu_scaler_cell_equals_its_autocast_cell_bit_for_bit(
    matrix: tuple[CommandLine, Run], parallel: str
) -> None:
    # The scale is a power of two, and bfloat16 has float32's range.
    autocast = weights(matrix[0], f"{parallel}-autocast")
    scaler = weights(matrix[0], f"{parallel}-scaler")
    assert all(torch.equal(autocast[key], scaler[key]) for key in autocast)
    fp32 = weights(matrix[0], f"{parallel}-fp32")
    assert not all(torch.equal(autocast[key], fp32[key]) for key in autocast)


def test_evaluate_gives_the_recorded_accuracy_of_each_of_the_nine(
    matrix: tuple[CommandLine, Run],
) -> None:
    command = matrix[0]
    run_dirs = [str(command.run_dir(cell)) for cell in CELLS]
    run = command("amp_sweep.evaluate", *run_dirs)
    assert run.code == 0, run.text
    lines = run.out.splitlines()
    assert len(lines) == 9
    for cell, line in zip(CELLS, lines, strict=True):
        accuracy = command.records()[cell].metrics["test_accuracy"]
        assert f"accuracy {accuracy:.4f}" in line
        assert line.endswith("as recorded")


@pytest.mark.parametrize("cell", CELLS)
def test_every_checkpoint_loads_in_all_three_ways(
    matrix: tuple[CommandLine, Run], cell: str
) -> None:
    state = weights(matrix[0], cell)
    network = models.build("alexnet", 10, width=0.1)
    network.load_state_dict(state)
    DataParallel(network).module.load_state_dict(state)
    # DistributedDataParallel wraps the same module; its group is not needed to load.
    assert not any(key.startswith("module.") for key in state)


def test_the_same_command_again_skips_all_nine_and_prints_the_table(
    matrix: tuple[CommandLine, Run],
) -> None:
    command = matrix[0]
    before = {path: path.stat().st_mtime_ns for path in command.folder.rglob("record.json")}
    run = command.train(*ALL, *SMALL)
    assert run.code == 0, run.text
    assert run.out.count("skipped, completed before") == 9
    assert "9 of 9 cells completed" in run.out
    assert run.err == ""  # PRICE is that of the runs
    after = {path: path.stat().st_mtime_ns for path in command.folder.rglob("record.json")}
    assert before == after


def test_a_price_that_comes_too_late_is_told(matrix: tuple[CommandLine, Run]) -> None:
    again = matrix[0].train(*SMALL, "measure.price_per_hour=3", "measure.probes=true")
    assert again.code == 0, again.text
    assert "skipped, completed before: none x fp32, seed 0" in again.out
    assert again.err.count("measure.price_per_hour=3.0: not of what was trained before") == 1
    assert "force=true" in again.err and "measure.probes" not in again.err


def test_a_run_directory_holds_what_the_design_names(matrix: tuple[CommandLine, Run]) -> None:
    command = matrix[0]
    names = {path.name for path in command.run_dir("ddp-scaler").iterdir()}
    assert names == {
        "record.json",
        "config.yaml",
        "overrides.yaml",
        "epochs.csv",
        "steps.csv",
        "train.log",
        "rank1.log",
        "checkpoints",
        "tensorboard",
    }
    kept = {path.name for path in (command.run_dir("ddp-scaler") / "checkpoints").iterdir()}
    assert kept == {"final.pt", "best.pt"}


def test_tensorboard_has_the_curves(matrix: tuple[CommandLine, Run]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    command = matrix[0]
    events = EventAccumulator(str(command.run_dir("none-scaler") / "tensorboard"))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"train/loss", "train/lr", "epoch/lr", "epoch/train_loss", "test/accuracy"} <= tags
    accuracy = [point.value for point in events.Scalars("test/accuracy")]
    recorded = [row["test_accuracy"] for row in command.records()["none-scaler-s0"].epochs]
    assert accuracy == pytest.approx(recorded)
    assert [point.step for point in events.Scalars("train/loss")] == [1, 5, 10]


def test_the_csv_files_agree_with_the_record(matrix: tuple[CommandLine, Run]) -> None:
    command = matrix[0]
    with (command.run_dir("ddp-fp32") / "epochs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row, recorded in zip(rows, command.records()["ddp-fp32-s0"].epochs, strict=True):
        assert float(row["train_loss"]) == recorded["train_loss"]
        assert int(row["epoch"]) == recorded["epoch"]


def test_status_lists_every_cell_as_completed(matrix: tuple[CommandLine, Run]) -> None:
    run = matrix[0]("amp_sweep.status", "outputs/matrix")
    assert run.code == 0, run.text
    assert "9 completed" in run.out


def test_records_are_strict_json(matrix: tuple[CommandLine, Run]) -> None:
    def refuse(text: str) -> None:
        raise AssertionError(text)

    for path in matrix[0].folder.rglob("record.json"):
        json.loads(path.read_text(), parse_constant=refuse)


def test_a_result_of_other_hardware_is_not_skipped_silently(
    matrix: tuple[CommandLine, Run],
) -> None:
    command = matrix[0]
    path = command.run_dir("none-fp32") / "record.json"
    text = path.read_text()
    changed = record.read(path)
    changed.effective["device_names"] = ["NVIDIA H200"]
    changed.effective["device_type"] = "cuda"
    try:
        record.write(path, changed)
        run = command.train(*SMALL)
        assert run.code == 1
        assert "NVIDIA H200" in run.err and "force=true" in run.err and "name=" in run.err
        assert "Traceback" not in run.text
    finally:
        path.write_text(text)


def test_plan_says_what_is_done_and_what_would_run_and_runs_nothing(
    matrix: tuple[CommandLine, Run],
) -> None:
    command = matrix[0]
    run = command.train("-m", "parallel=none,ddp", "seed=0,1", "plan=true", *SMALL)
    assert run.code == 0, run.text
    lines = run.out.splitlines()
    assert sum("skip: completed" in line for line in lines) == 2
    assert sum(" run " in line for line in lines) == 2
    assert len(command.records()) == 9
