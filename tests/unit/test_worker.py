"""One rank from its job to its record, in this process: none of it is replaced."""

import csv
import dataclasses
import itertools
import json
import math
import os
import random
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tensorboard.summary.writer import event_file_writer
from torch import Tensor, nn

from amp_sweep import (
    checkpoint,
    config,
    data,
    energy,
    engine,
    models,
    optim,
    parallel,
    record,
    track,
)
from amp_sweep.config import RunConfig
from amp_sweep.parallel import Ranks
from amp_sweep.paths import RunPaths
from amp_sweep.precision import Observed
from amp_sweep.record import Record
from amp_sweep.worker import Invalid, RankJob, prepare
from amp_sweep.worker.build import build, outputs_of, rank_seed
from amp_sweep.worker.compile_ahead import compile_ahead, layers_that_run
from amp_sweep.worker.guard import Diverged, checksum
from amp_sweep.worker.honoured import differences
from amp_sweep.worker.train import StopRequest, _next_save, run_cell
from tests.integration.images import make_folder
from tests.unit.test_track import curve, hparams_tab

Make = Callable[..., RunConfig]

pytestmark = pytest.mark.usefixtures("torch_switches")

NETWORKS = """
import random

import numpy
import torch
from torch import nn

class Small(nn.Sequential):
    def __init__(self, num_classes):
        super().__init__(
            nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(),
            nn.Dropout(0.2), nn.Linear(4 * 3 * 3, num_classes),
        )

class OfThree(Small):
    "Knows no other number of classes."
    def __init__(self, num_classes):
        assert num_classes == 3
        super().__init__(num_classes)

class OfNone(Small):
    def __init__(self, num_classes):
        raise ValueError("no number is right")

class Stubborn(Small):
    "Computes in float32 whatever it is told."
    def forward(self, images):
        with torch.autocast("cpu", enabled=False):
            return super().forward(images.float())

class Partly(Small):
    "Computes its first layer in half precision whatever it is told."
    def forward(self, images):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            images = self[0](images).float()
        for layer in list(self)[1:]:
            images = layer(images)
        return images

class Late(Small):
    "Puts another layer in the place of its last one when it first sees an image."
    def forward(self, images):
        if self[-1].bias is not None:
            self[-1] = nn.Linear(4 * 3 * 3, self[-1].out_features, bias=False)
        return super().forward(images)

class Chance(Small):
    "Learns what Python's and NumPy's random numbers let it."
    def forward(self, images):
        return super().forward(images) * (random.random() + numpy.random.rand())

class Steep(Small):
    def forward(self, images):
        return super().forward(images) * 1e4

class Hopeless(Small):
    def forward(self, images):
        return super().forward(images) * torch.inf
"""


@pytest.fixture(autouse=True)
def one_core() -> Iterator[None]:
    """A rank takes a thread a core; small tensors on shared cores want one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The name of a module with networks."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "worker_test_networks.py").write_text(NETWORKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("AMP_SWEEP_CACHE", str(folder / "cache"))
        yield "worker_test_networks"


@pytest.fixture
def settings(make: Make, module: str) -> Make:
    """Four epochs of six steps of a small network."""

    def of(**changes: Any) -> RunConfig:
        return make(
            **{
                "model__name": f"{module}:Small",
                "data__name": "synthetic",
                "data__train_images": 50,  # two are dropped
                "data__test_images": 23,
                "data__classes": 3,
                "data__source_size": 8,
                "data__image_size": 8,
                "data__batch_size": 8,
                "epochs": 4,
                "track__name": "none",
                "track__every_steps": 5,
                "checkpoint__min_interval_s": 1e9,
                **changes,
            }
        )

    return of


class StopAt(StopRequest):
    """A stop that is asked for before a step, as a signal would."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def go_on(self, ranks: Ranks, step: int) -> bool:
        self.requested = self.requested or step >= self.step
        return super().go_on(ranks, step)


def run(
    root: Path,
    cell: RunConfig,
    *,
    stop: StopRequest | None = None,
    resume: bool = False,
    reached: Callable[[str], None] = lambda _what: None,
) -> str:
    """What the launcher does around a rank, and the rank."""
    job = job_of(root, cell, resume=resume)
    return run_cell(job, RunPaths(root), Ranks(0, 0, 1), stop or StopRequest(), reached)


def job_of(root: Path, cell: RunConfig, *, resume: bool = False) -> RankJob:
    """A rank's job, with what the launcher has written before it begins."""
    paths = RunPaths(root)
    root.mkdir(exist_ok=True)
    prepared = data.prepare(cell.data)
    plan = parallel.make_plan(cell.parallel, cell.data.batch_size, "global", "cpu", 1)
    fingerprint = config.fingerprint(cell)
    current = Record("matrix", fingerprint, record.RUNNING, {}, [], config.to_dict(cell))
    if resume:
        earlier = record.read(paths.record)
        current.segments, current.epochs = earlier.segments, earlier.epochs
        current.notes = earlier.notes
    current.segments.append({"from_epoch": None})
    config.save(cell, paths.config)
    record.write(paths.record, current)
    return RankJob(str(root), str(prepared.folder), plan, time.monotonic(), 1, "127.0.0.1", resume)


def weights(root: Path, cell: RunConfig, name: str = "final_weights") -> dict[str, torch.Tensor]:
    loaded = checkpoint.load(getattr(RunPaths(root), name), config.fingerprint(cell))
    found: dict[str, torch.Tensor] = loaded["weights"]
    return found


def same_weights(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def losses(root: Path) -> list[float]:
    return [row["train_loss"] for row in record.read(RunPaths(root).record).epochs]


def test_a_cell_from_its_job_to_its_record(tmp_path: Path, settings: Make) -> None:
    cell = settings()
    root = tmp_path / "run"
    assert run(root, cell) == record.COMPLETED
    found = record.read(RunPaths(root).record)

    # DESIGN section 5 names these.
    assert set(found.metrics) >= {
        *("test_accuracy", "best_test_accuracy", "test_loss", "train_loss", "train_time_s"),
        *("startup_s", "first_step_s", "images_per_s", "step_ms_p50", "step_ms_p95"),
        *("step_ms_p99", "data_wait_frac", "peak_allocated_mib", "peak_reserved_mib", "energy_j"),
        *("flops_per_image", "mfu", "scaler_final_scale", "scaler_skipped_steps"),
    }
    assert set(found.effective) >= {
        *("parallel", "device_type", "device_names", "world_size", "replicas", "autocast_dtype"),
        *("observed_dtypes", "scaler_enabled", "tf32_matmul", "tf32_cudnn", "cudnn_benchmark"),
        *("native_bf16", "memory_format", "compile", "global_batch", "per_device_batch", "steps"),
        *("train_images", "test_images", "data_digest", "code_digest", "image_size"),
    }
    assert set(found.epochs[0]) >= {
        *("epoch", "train_loss", "test_accuracy", "lr", "train_time_s", "images_per_s")
    }
    effective = found.effective
    assert (effective["steps"], effective["train_images"]) == (4 * 6, 50)
    assert effective["observed_dtypes"] == ["float32"] and effective["autocast_dtype"] is None
    assert (effective["global_batch"], effective["per_device_batch"]) == (8, 8)
    assert found.metrics["scaler_final_scale"] is None
    assert found.metrics["optimizer_steps"] == 24
    assert 0 < found.metrics["first_step_s"] < found.epochs[0]["train_time_s"]

    # Every null has its reason.
    for name, value in found.metrics.items():
        if value is None and not name.startswith(("scaler", "peak")):
            assert any(name in note for note in found.notes), name

    # Sums and maxima of the epochs' own figures.
    rows = found.epochs
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert found.metrics["train_time_s"] == pytest.approx(sum(r["train_time_s"] for r in rows))
    assert found.metrics["best_test_accuracy"] == max(r["test_accuracy"] for r in rows)
    assert found.metrics["images_per_s"] == pytest.approx(
        3 * 48 / sum(r["train_time_s"] for r in rows[1:])
    )
    for row in rows:
        assert row["images_per_s"] == pytest.approx(48 / row["train_time_s"])
        # The lr in force during the epoch: half a cosine over four.
        share = (row["epoch"] - 1) / 4
        assert row["lr"] == pytest.approx(1e-3 * (1 + math.cos(math.pi * share)) / 2)

    with RunPaths(root).epochs.open() as file:
        table = list(csv.DictReader(file))
    assert [float(row["train_loss"]) for row in table] == losses(root)
    with RunPaths(root).steps.open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [1, 5, 10, 15, 20]


def test_the_recorded_accuracy_is_that_of_the_stored_weights(
    tmp_path: Path, settings: Make
) -> None:
    cell = settings(data__normalize=False)
    run(tmp_path / "run", cell)
    prepared = data.prepare(cell.data)
    stored = np.load(prepared.folder / "test_images.npy")
    images = torch.from_numpy(stored).permute(0, 3, 1, 2).float() / 255
    truth = np.load(prepared.folder / "test_labels.npy")
    network = models.build(cell.model.name, 3)
    network.load_state_dict(weights(tmp_path / "run", cell))
    with torch.no_grad():
        answers = network.eval()(images.expand(-1, 3, -1, -1)).argmax(1).numpy()
    found = record.read(RunPaths(tmp_path / "run").record)
    assert found.metrics["test_accuracy"] == (answers == truth).sum() / 23


def test_each_epoch_trains_on_an_order_of_its_own(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Tensor] = []
    seconds: list[float] = []
    real = engine.train_epoch

    def train_epoch(
        trainer: engine.Trainer, split: data.Split, indices: Tensor, *given: Any, **named: Any
    ) -> engine.EpochSteps:
        trained.append(indices)
        done = real(trainer, split, indices, *given, **named)
        seconds.append(done.time_s)
        return done

    monkeypatch.setattr(engine, "train_epoch", train_epoch)
    run(tmp_path / "run", settings(seed=3, checkpoint__every_steps=4))
    rows = record.read(RunPaths(tmp_path / "run").record).epochs
    assert len(trained) == 2 * len(rows) == 8  # each in two parts
    for epoch, row in enumerate(rows):
        part = slice(2 * epoch, 2 * epoch + 2)
        order = data.epoch_order(50, 3, epoch, True)
        assert torch.equal(torch.cat(trained[part]), order[:48].view(6, 8))
        assert row["train_time_s"] == pytest.approx(sum(seconds[part]))


@pytest.mark.parametrize("network", ["Small", "Chance"])
def test_a_seed_decides_everything(
    tmp_path: Path, settings: Make, module: str, network: str
) -> None:
    cell = settings(model__name=f"{module}:{network}")
    one, again, other = (tmp_path / name for name in ("one", "again", "other"))
    run(one, cell)
    torch.rand(5), random.random(), np.random.rand()  # whatever was drawn in between
    run(again, cell)
    run(other, settings(model__name=f"{module}:{network}", seed=1))
    assert losses(one) == losses(again) != losses(other)
    assert same_weights(weights(one, cell), weights(again, cell))


@pytest.mark.parametrize(
    ("precision", "step"), [("fp32", 0), ("fp32", 8), ("scaler", 1), ("scaler", 12), ("scaler", 23)]
)
def test_a_stopped_and_resumed_run_ends_bit_for_bit_as_one_that_was_not(
    tmp_path: Path, settings: Make, precision: str, step: int
) -> None:
    scaler = precision == "scaler"
    cell = settings(
        precision__name=precision,
        precision__autocast=scaler,
        precision__scaler=scaler,
        precision__growth_interval=5,
        scheduler__name="plateau",
        scheduler__patience=0,
    )
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert run(whole, cell) == record.COMPLETED
    assert run(parts, cell, stop=StopAt(step)) == record.INTERRUPTED
    halfway = record.read(RunPaths(parts).record)
    assert [row["epoch"] for row in halfway.epochs] == list(range(1, step // 6 + 1))
    assert halfway.metrics["optimizer_steps"] == step
    assert not RunPaths(parts).final_weights.exists()
    assert run(parts, cell, resume=True) == record.COMPLETED

    one, two = (record.read(RunPaths(root).record) for root in (whole, parts))
    assert losses(whole) == losses(parts)
    assert [row["lr"] for row in one.epochs] == [row["lr"] for row in two.epochs]
    assert one.metrics["test_accuracy"] == two.metrics["test_accuracy"]
    assert one.metrics["scaler_final_scale"] == two.metrics["scaler_final_scale"]
    assert one.metrics["optimizer_steps"] == two.metrics["optimizer_steps"] == 24
    begun = [(segment["from_epoch"], segment["from_step"]) for segment in two.segments]
    assert begun == [(0, 0), divmod(step, 6)]
    assert same_weights(weights(whole, cell), weights(parts, cell))
    for table in ("epochs", "steps"):
        columns = ("epoch", "step", "train_loss", "lr", "scale", "test_accuracy")
        rows = []
        for root in (whole, parts):
            with getattr(RunPaths(root), table).open() as file:
                rows.append([{k: r.get(k) for k in columns} for r in csv.DictReader(file)])
        assert rows[0] == rows[1]


def test_the_energy_of_an_image_is_that_of_the_images_trained_on_before_a_stop_and_after(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Meter(energy.Nvml):
        """Each window takes a joule."""

        readings = itertools.count()

        def energy_j(self) -> float:
            return float(next(self.readings))

    monkeypatch.setattr(energy, "open_nvml", lambda _devices: Meter())
    monkeypatch.setattr(energy, "MIN_WINDOW_S", 0.0)
    cell, root = settings(measure__price_per_hour=2.0), tmp_path / "run"
    run(root, cell, stop=StopAt(8))
    stopped = record.read(RunPaths(root).record)
    stopped.segments[-1]["wall_s"] = 1800.0  # the launcher's figure
    record.write(RunPaths(root).record, stopped)
    run(root, cell, resume=True)
    metrics = record.read(RunPaths(root).record).metrics
    assert metrics["energy_j"] == 5  # the second epoch in two windows
    assert metrics["energy_j_per_image"] == pytest.approx(4 / (3 * 48))  # without the first
    assert 1.0 < metrics["cost"] < 1.5  # half an hour and this moment


def test_a_damaged_last_checkpoint_costs_only_the_steps_since_the_one_before(
    tmp_path: Path, settings: Make
) -> None:
    cell = settings(checkpoint__every_steps=4)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, cell)
    run(parts, cell, stop=StopAt(14))  # two epochs are in the tables, one in the checkpoint before
    paths = RunPaths(parts)
    content = paths.last_checkpoint.read_bytes()
    paths.last_checkpoint.write_bytes(content[: len(content) // 2])
    assert run(parts, cell, resume=True) == record.COMPLETED
    assert same_weights(weights(whole, cell), weights(parts, cell))
    assert paths.steps.read_text() == RunPaths(whole).steps.read_text()
    with paths.epochs.open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["1", "2", "3", "4"]
    notes = record.read(paths.record).notes
    assert sum(str(paths.last_checkpoint) in note for note in notes) == 1


@pytest.mark.parametrize("edited", [False, True])
def test_an_edited_network_is_trained_from_the_start_in_place_of_a_resume(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch, edited: bool
) -> None:
    file = tmp_path / f"network_that_is_edited_{edited}.py"
    file.write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    cell = settings(model__name=f"{file.stem}:Small")
    root = tmp_path / "run"
    run(root, cell, stop=StopAt(8))
    before = record.read(RunPaths(root).record).effective["code_digest"]
    if edited:
        file.write_text(NETWORKS.replace("0.2", "0.9"))
    assert run(root, cell, resume=True) == record.COMPLETED
    done = record.read(RunPaths(root).record)
    assert (done.effective["code_digest"] != before) == edited
    begun = done.segments[-1]["from_epoch"], done.segments[-1]["from_step"]
    assert begun == ((0, 0) if edited else (1, 2))
    words = f"started over: the code of {file.stem}:Small has changed since the checkpoint"
    assert sum(note.startswith(words) for note in done.notes) == edited


class Dies(StopRequest):
    """A rank that ends in the middle of its first epoch."""

    def go_on(self, ranks: Ranks, step: int) -> bool:
        if step == 2:
            raise RuntimeError("dies")
        return super().go_on(ranks, step)


def test_code_that_is_put_back_brings_back_nothing_that_was_given_up(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "network_that_is_put_back.py"
    file.write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    cell = settings(model__name=f"{file.stem}:Small")
    root = tmp_path / "run"
    run(root, cell, stop=StopAt(8))
    file.write_text(NETWORKS.replace("0.2", "0.9"))
    with pytest.raises(RuntimeError, match="dies"):
        run(root, cell, resume=True, stop=Dies())
    file.write_text(NETWORKS)
    assert run(root, cell, resume=True) == record.COMPLETED
    done = record.read(RunPaths(root).record)
    assert (done.segments[-1]["from_epoch"], done.segments[-1]["from_step"]) == (0, 0)
    assert len(done.epochs) == cell.epochs


@pytest.mark.parametrize(
    ("lost", "begun"), [("code", (0, 0)), ("checkpoints", (0, 0)), ("last", (0, 4)), ("", (1, 2))]
)
def test_of_epochs_that_are_trained_again_nothing_of_the_earlier_attempt_is_left(
    tmp_path: Path,
    settings: Make,
    monkeypatch: pytest.MonkeyPatch,
    lost: str,
    begun: tuple[int, int],
) -> None:
    # Event files of one second and process are read in the order of their numbers as text.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))
    file = tmp_path / f"network_that_is_trained_again_{lost}.py"
    file.write_text(NETWORKS)
    monkeypatch.syspath_prepend(tmp_path)
    cell = settings(
        model__name=f"{file.stem}:Small",
        track__name="tensorboard",
        checkpoint__every_steps=4,
        checkpoint__every_epoch=True,
    )
    root = tmp_path / "run"
    paths = RunPaths(root)
    run(root, cell, stop=StopAt(8))
    earlier = record.read(paths.record)
    earlier.note("of the earlier attempt")
    record.write(paths.record, earlier)
    if begun == (0, 0):  # as on a machine with other devices
        shutil.rmtree(paths.tensorboard)
        earlier.effective["world_size"] = 2
        tracker = track.open_tracker("tensorboard", paths.tensorboard)
        tracker.begin(earlier)
        tracker.scalar("test/accuracy", 0.125, 6)
        tracker.close()
    if lost == "code":
        file.write_text(NETWORKS.replace("0.2", "0.9"))
    elif lost == "checkpoints":
        paths.last_checkpoint.unlink()
        paths.previous_checkpoint.unlink()
    elif lost == "last":
        paths.last_checkpoint.write_bytes(b"")
    before = run(root, cell, stop=StopAt(5), resume=True), paths.best_weights.exists()
    assert before == (record.INTERRUPTED, begun[0] > 0)
    assert paths.epoch_weights(1).exists() == (begun[0] > 0)
    found = record.read(paths.record)
    segment = found.segments[-1]
    assert (segment["from_epoch"], segment["from_step"]) == begun
    assert ("of the earlier attempt" in found.notes) == (begun != (0, 0))

    assert run(root, cell, stop=StopAt(14), resume=True) == record.INTERRUPTED
    with paths.steps.open() as table:
        steps = [(int(row["step"]), float(row["train_loss"])) for row in csv.DictReader(table)]
    assert [step for step, _ in steps] == [1, 5, 10]
    assert curve(paths.tensorboard, "train/loss") == approximate(steps)
    accuracies = [(6 * r["epoch"], r["test_accuracy"]) for r in record.read(paths.record).epochs]
    assert curve(paths.tensorboard, "test/accuracy") == approximate(accuracies)
    _, (entry,) = hparams_tab(root)
    assert entry.hparams["world_size"].number_value == 1


def approximate(points: list[tuple[int, float]]) -> list[tuple[int, Any]]:
    """The same points of a curve, whose values TensorBoard keeps in float32."""
    return [(step, pytest.approx(value, rel=1e-6)) for step, value in points]


@pytest.mark.parametrize("changed", [False, True])
def test_images_that_have_changed_are_trained_on_from_the_start_in_place_of_a_resume(
    tmp_path: Path, settings: Make, changed: bool
) -> None:
    folder = tmp_path / "images"
    make_folder(folder, 50, 8, size=8)
    cell = settings(
        data__name="imagefolder",
        data__root=str(folder),
        data__train_images=None,
        data__test_images=None,
        data__classes=None,
        data__source_size=None,
    )
    root = tmp_path / "run"
    run(root, cell, stop=StopAt(8))
    before = record.read(RunPaths(root).record).effective["data_digest"]
    if changed:
        image = folder / "train" / "dark" / "0000.jpg"
        image.write_bytes((folder / "train" / "light" / "0001.jpg").read_bytes())
    assert run(root, cell, resume=True) == record.COMPLETED
    done = record.read(RunPaths(root).record)
    assert (done.effective["data_digest"] != before) == changed
    assert done.segments[-1]["from_epoch"] == (0 if changed else 1)
    words = "started over: the images have changed since the checkpoint"
    assert sum(note.startswith(words) for note in done.notes) == changed


def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(tmp_path: Path, settings: Make) -> None:
    cell = settings()
    root = tmp_path / "run"
    run(root, cell, stop=StopAt(8))
    last = RunPaths(root).last_checkpoint
    state = checkpoint.load(last, config.fingerprint(cell))
    del state["code_digest"], state["data_digest"], state["energies"]
    checkpoint.save(last, state)
    assert run(root, cell, resume=True) == record.COMPLETED
    assert record.read(RunPaths(root).record).segments[-1]["from_epoch"] == 1


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("world_size", 2, "from 2 rank(s) on cpu, this is 1 on cpu"),
        ("device_type", "cuda", "from 1 rank(s) on cuda, this is 1 on cpu"),
    ],
)
def test_a_checkpoint_of_other_devices_is_not_gone_on_from(
    tmp_path: Path, settings: Make, name: str, value: object, words: str
) -> None:
    cell = settings()
    root = tmp_path / "run"
    run(root, cell, stop=StopAt(8))
    last = RunPaths(root).last_checkpoint
    checkpoint.save(last, {**checkpoint.load(last, config.fingerprint(cell)), name: value})
    assert run(root, cell, resume=True) == record.COMPLETED
    done = record.read(RunPaths(root).record)
    assert done.segments[-1]["from_epoch"] == 0
    assert f"started over: the checkpoint is {words}" in done.notes


def test_what_another_rank_finds_different_is_not_gone_on_from_on_this_one_either(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Ranks.gather
    root = tmp_path / "run"
    run(root, settings(), stop=StopAt(8))

    def gather(self: Ranks, value: Any) -> list[Any]:
        return [*real(self, value), *(["planted"] if value is None else [])]

    monkeypatch.setattr(Ranks, "gather", gather)
    assert run(root, settings(), resume=True) == record.COMPLETED
    done = record.read(RunPaths(root).record)
    assert done.segments[-1]["from_epoch"] == 0 and "started over: planted" in done.notes


def test_checkpoints_that_are_all_damaged_are_named_and_the_run_begins_anew(
    tmp_path: Path, settings: Make
) -> None:
    root = tmp_path / "run"
    paths = RunPaths(root)
    run(root, settings(checkpoint__every_steps=4), stop=StopAt(8))
    both = [paths.last_checkpoint, paths.previous_checkpoint]
    for path in both:
        path.write_bytes(b"")
    assert run(root, settings(checkpoint__every_steps=4), resume=True) == record.COMPLETED
    done = record.read(paths.record)
    assert done.segments[-1]["from_epoch"] == 0
    assert [sum(str(path) in note for note in done.notes) for path in both] == [1, 1]


# ------------------------------------------------------------------ random numbers of others


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def drawn() -> tuple[float, ...]:
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def test_probes_leave_the_random_numbers_that_a_network_draws_itself(
    tmp_path: Path, settings: Make, module: str
) -> None:
    ends = {}
    for probes in (True, False):
        cell = settings(model__name=f"{module}:Chance", measure__probes=probes, epochs=1)
        root = tmp_path / str(probes)
        seed_all(0)
        run(root, cell)
        ends[probes] = (*drawn(), losses(root), weights(root, cell))
        found = record.read(RunPaths(root).record).metrics["memory_parameters_mib"]
        assert (found is not None) == probes
    assert ends[True][:-1] == ends[False][:-1]
    assert same_weights(ends[True][-1], ends[False][-1])


def test_compiling_ahead_leaves_the_random_numbers_that_a_network_draws_itself(
    tmp_path: Path, settings: Make, module: str
) -> None:
    root = tmp_path / "run"
    job = job_of(root, settings(model__name=f"{module}:Chance"))
    cell = build(job, RunPaths(root), Ranks(0, 0, 1))
    # As a compiled cell's, but for the compiler, which takes long and draws nothing.
    cell.speedups = dataclasses.replace(cell.speedups, compile="default")
    calls = []
    cell.network.register_forward_hook(lambda *_: calls.append(None))
    seed_all(0)
    assert compile_ahead(cell, Observed()) is not None
    after = drawn()
    seed_all(0)
    assert after == drawn() and len(calls) == 3
    cell.train.close()
    cell.test.close()


def test_a_rank_of_one_device_runs_its_backward_passes_in_its_own_thread(
    tmp_path: Path, settings: Make
) -> None:
    with torch.autograd.set_multithreading_enabled(True):
        cell = build(job_of(tmp_path, settings()), RunPaths(tmp_path), Ranks(0, 0, 1))
        assert not torch._C._is_multithreading_enabled()
    cell.train.close()
    cell.test.close()


class Wrapped(nn.Linear):
    """A layer of a person's own around PyTorch's."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images)


class Layers(nn.Module):
    """Three layers, the middle one twice, and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(4, 4), Wrapped(4, 4), nn.Linear(4, 2)
        self.unused = nn.Linear(4, 4)

    def forward(self, images: Tensor) -> Tensor:
        images = self.second(self.second(self.first(images)))
        return cast(Tensor, self.third(images))


@torch.no_grad()  # at a break in the graph PyTorch looks at the gradients of what is no leaf
def test_layers_whose_own_code_runs_are_told_from_compiled_ones() -> None:
    network, images = Layers(), torch.randn(3, 4)

    def run() -> set[int]:
        return layers_that_run(network, lambda: network(images))

    assert run() == {id(network.first), id(network.second), id(network.third)}
    network.second.forward = torch._dynamo.disable(network.second.forward)  # type: ignore[method-assign]
    network.compile(backend="eager", dynamic=False)
    network(images)
    assert run() == {id(network.second)}
    assert sys.getprofile() is None


@pytest.mark.parametrize("name", ["none", "ddp"])
def test_a_network_of_pytorchs_own_containers_is_compiled_as_a_whole(
    name: str, tmp_path: Path, settings: Make
) -> None:
    # In PyTorch 2.11 its children, compiled one by one, stay as they are.
    root = tmp_path / "run"
    job = job_of(root, settings(model__name="alexnet", model__width=0.05, data__image_size=64))
    cell = build(job, RunPaths(root), Ranks(0, 0, 1))
    cell.speedups = dataclasses.replace(cell.speedups, compile="default")
    loss = cell.trainer.loss
    if name == "ddp":
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        loss = cell.trainer.loss = parallel.wrap(cell.loss, "ddp", [cell.device])
    try:
        loss.compile(backend="eager", dynamic=False)
        compiled = compile_ahead(cell, Observed())
    finally:
        if name == "ddp":
            dist.destroy_process_group()
        cell.train.close()
        cell.test.close()
    assert compiled is not None and compiled.layers > 0 and compiled.uncompiled == 0


def test_a_resumed_run_draws_on_from_where_it_stopped(
    tmp_path: Path, settings: Make, module: str
) -> None:
    cell = settings(model__name=f"{module}:Chance")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    seed_all(0)
    run(whole, cell)
    seed_all(0)
    assert run(parts, cell, stop=StopAt(8)) == record.INTERRUPTED
    seed_all(1)  # a new process has drawn something else
    assert run(parts, cell, resume=True) == record.COMPLETED
    assert losses(whole) == losses(parts)
    assert same_weights(weights(whole, cell), weights(parts, cell))


# ------------------------------------------------------------------ when the training is over


def test_the_training_is_over_when_all_of_it_is_stored_and_before_any_probe(
    tmp_path: Path, settings: Make
) -> None:
    cell, root = settings(), tmp_path / "run"
    seen: dict[str, Record] = {}

    def reached(what: str) -> None:
        assert weights(root, cell)  # they can be read
        seen[what] = record.read(RunPaths(root).record)

    run(root, cell, reached=reached)
    assert list(seen) == ["trained", "probed"]
    trained, probed = seen["trained"], seen["probed"]
    assert trained.metrics["test_accuracy"] == probed.metrics["test_accuracy"] is not None
    assert len(trained.epochs) == 4
    # What stands there if nothing else comes is a null with its reason.
    unprobed = [n for n, value in probed.metrics.items() if trained.metrics.get(n) != value]
    assert {"memory_parameters_mib", "diagnosis", "flops_per_image", "mfu"} <= set(unprobed)
    (reason,) = (note for note in trained.notes if note.endswith("did not come to their end"))
    for name in unprobed:
        assert trained.metrics[name] is None and name in reason
    assert not any("did not come to their end" in note for note in probed.notes)


def test_a_run_that_was_not_as_asked_for_never_says_that_its_training_is_over(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(*arguments: Any) -> list[str]:
        return [*differences(*arguments), "epochs: asked for 4, ran 5"]

    monkeypatch.setattr("amp_sweep.worker.honoured.differences", other)
    seen: list[str] = []
    with pytest.raises(Invalid, match=r"^epochs: asked for 4, ran 5$"):
        run(tmp_path / "run", settings(), reached=seen.append)
    assert seen == []


def test_what_another_rank_finds_wrong_is_invalid_on_this_one_too(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Ranks.gather

    def gather(self: Ranks, value: Any) -> list[Any]:
        return [*real(self, value), *([["device: asked for cuda, ran cpu"]] if value == [] else [])]

    monkeypatch.setattr(Ranks, "gather", gather)
    seen: list[str] = []
    with pytest.raises(Invalid, match="device: asked for cuda"):
        run(tmp_path / "run", settings(), reached=seen.append)
    assert seen == []


def test_a_stopped_run_is_not_over_and_its_probes_are_still_to_come(
    tmp_path: Path, settings: Make
) -> None:
    cell, root = settings(), tmp_path / "run"
    seen: list[str] = []
    run(root, cell, stop=StopAt(2), reached=seen.append)
    assert seen == []
    later = ": taken after the last epoch"
    assert any(note.endswith(later) for note in record.read(RunPaths(root).record).notes)
    run(root, cell, resume=True, reached=seen.append)
    assert seen == ["trained", "probed"]
    found = record.read(RunPaths(root).record)
    assert not any(note.endswith(later) for note in found.notes)
    # Nor is it still said why a figure is missing that is there by now.
    excused = {name for note in found.notes for name in note.partition(": ")[0].split(", ")}
    assert found.metrics["images_per_s"] > 0 and found.metrics["step_ms_p50"] > 0
    assert excused.isdisjoint({"images_per_s", "step_ms_p50", "data_wait_frac"})


# ------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize(
    ("every", "step", "steps", "expected"),
    [(None, 0, 6, 6), (None, 4, 6, 6), (4, 0, 6, 4), (4, 3, 6, 4), (4, 4, 6, 6), (6, 0, 6, 6),
     (1, 2, 6, 3), (100, 2, 6, 6)],
)  # fmt: skip
def test_the_next_checkpoint_is_due_after(
    every: int | None, step: int, steps: int, expected: int
) -> None:
    assert _next_save(every, step, steps) == expected


def test_weights_of_every_epoch_are_kept_where_asked(tmp_path: Path, settings: Make) -> None:
    cell = settings(checkpoint__every_epoch=True)
    run(tmp_path / "run", cell)
    paths = RunPaths(tmp_path / "run")
    assert [paths.epoch_weights(epoch).exists() for epoch in (1, 2, 3, 4, 5)] == [True] * 4 + [
        False
    ]
    last = checkpoint.load(paths.epoch_weights(4), config.fingerprint(cell))["weights"]
    assert same_weights(last, weights(tmp_path / "run", cell))


# ------------------------------------------------------------------ what must not pass


@pytest.mark.parametrize("batch", [8, 50], ids=["six steps", "one step"])
def test_a_network_that_computes_in_another_format_is_invalid(
    tmp_path: Path, settings: Make, module: str, batch: int
) -> None:
    cell = settings(
        model__name=f"{module}:Stubborn",
        precision__name="autocast",
        precision__autocast=True,
        data__batch_size=batch,
    )
    with pytest.raises(Invalid, match="computed in float32, requested was bfloat16"):
        run(tmp_path / "run", cell)


def test_a_part_in_another_format_is_invalid_where_float32_was_asked_for(
    tmp_path: Path, settings: Make, module: str
) -> None:
    with pytest.raises(Invalid, match="computed in bfloat16, float32, requested was float32"):
        run(tmp_path / "run", settings(model__name=f"{module}:Partly"))


def test_weights_that_come_in_the_forward_pass_are_invalid_since_nothing_trains_them(
    tmp_path: Path, settings: Make, module: str
) -> None:
    with pytest.raises(Invalid, match=r"5\.weight was made in the forward pass"):
        run(tmp_path / "run", settings(model__name=f"{module}:Late"))


def test_a_loss_that_stays_infinite_is_divergence(
    tmp_path: Path, settings: Make, module: str
) -> None:
    cell = settings(model__name=f"{module}:Hopeless", guard__nonfinite_steps=7)
    with pytest.raises(Diverged, match="7 non-finite losses in a row, up to step 7"):
        run(tmp_path / "run", cell)


SCALER = {"precision__name": "scaler", "precision__autocast": True, "precision__scaler": True}


def test_a_scale_that_collapses_is_divergence(tmp_path: Path, settings: Make, module: str) -> None:
    cell = settings(
        **SCALER,
        model__name=f"{module}:Hopeless",
        guard__nonfinite_steps=100,
        guard__min_scale=2.0**-3,
        precision__init_scale=2.0,
    )
    # 2 is halved once a step: 2**-3 is reached after the 4th and passed after the 5th.
    with pytest.raises(Diverged, match=r"fell to 0\.0625 .* at step 5"):
        run(tmp_path / "run", cell)


def test_skipped_steps_are_counted_by_the_halvings_of_the_scale(
    tmp_path: Path, settings: Make, module: str
) -> None:
    # A loss of thousands times 2**127 is beyond float32.
    cell = settings(
        **SCALER,
        model__name=f"{module}:Steep",
        precision__init_scale=2.0**127,
        precision__growth_interval=1000,
    )
    run(tmp_path / "run", cell)
    metrics = record.read(RunPaths(tmp_path / "run").record).metrics
    skipped = metrics["scaler_skipped_steps"]
    assert metrics["scaler_final_scale"] == 2.0 ** (127 - skipped)
    assert 8 <= skipped < 24
    assert metrics["optimizer_steps"] == 24 - skipped


def test_a_scale_that_float32_rounds_down_is_no_skipped_step(
    tmp_path: Path, settings: Make
) -> None:
    run(tmp_path / "run", settings(**SCALER, precision__init_scale=1000.1, epochs=1))
    metrics = record.read(RunPaths(tmp_path / "run").record).metrics
    assert metrics["scaler_skipped_steps"] == 0 and metrics["optimizer_steps"] == 6


@pytest.mark.parametrize("scaler", [False, True])
def test_a_scaler_that_bfloat16_does_not_need_is_told(
    tmp_path: Path, settings: Make, scaler: bool
) -> None:
    run(tmp_path / "run", settings(**{**SCALER, "precision__scaler": scaler}, epochs=1))
    notes = record.read(RunPaths(tmp_path / "run").record).notes
    assert any("needs no scaler" in note for note in notes) == scaler


@pytest.mark.parametrize("metric", ["epoch_mean", "last_batch"])
def test_a_schedule_watches_the_loss_that_was_asked_for(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    watched: list[float] = []
    monkeypatch.setattr(optim, "step_scheduler", lambda _schedule, loss: watched.append(loss))
    run(tmp_path / "run", settings(scheduler__metric=metric, track__every_steps=1))
    with RunPaths(tmp_path / "run").steps.open() as file:
        steps = [float(row["train_loss"]) for row in csv.DictReader(file)]
    means = losses(tmp_path / "run")
    assert means == pytest.approx([sum(steps[at : at + 6]) / 6 for at in (0, 6, 12, 18)])
    assert watched == (steps[5::6] if metric == "last_batch" else means)


def test_fewer_outputs_than_classes_are_invalid(make: Make) -> None:
    assert outputs_of(make(model__outputs=1000), 10) == 1000
    assert outputs_of(make(), 10) == 10
    with pytest.raises(Invalid, match=r"model\.outputs=9, and the data has 10 classes"):
        outputs_of(make(model__outputs=9), 10)


def test_ranks_draw_different_dropout_and_seeds_do_not_meet() -> None:
    seeds = [rank_seed(seed, rank) for seed in range(50) for rank in range(50)]
    assert len(set(seeds)) == 2500
    torch.Generator().manual_seed(max(seeds))


def test_a_stop_is_agreed_once_and_then_kept() -> None:
    ranks, stop = Ranks(0, 0, 1), StopRequest()
    assert all(stop.go_on(ranks, step) for step in range(5))
    stop.requested = True
    assert not stop.go_on(ranks, 5)
    assert stop.target == 5
    assert not stop.go_on(ranks, 6)


def test_a_sign_of_life_says_where_the_run_is(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amp_sweep.worker.write.PROGRESS_S", 1e9)  # what may be left out is
    run(tmp_path / "run", settings())
    values = json.loads(RunPaths(tmp_path / "run").progress.read_text())
    assert (values["epochs"], values["steps"]) == (4, 6)
    assert 0 <= values["epoch"] <= 4 and 0 <= values["step"] <= 6
    assert values["doing"].startswith("probe ")
    assert values["began"] == 0
    assert run(tmp_path / "parts", settings(), stop=StopAt(8)) == record.INTERRUPTED
    run(tmp_path / "parts", settings(), resume=True)
    values = json.loads(RunPaths(tmp_path / "parts").progress.read_text())
    assert values["began"] == 1 + 2 / 6


# ------------------------------------------------------------------ before the start


def prepared_for(*cells: RunConfig) -> Any:
    calls: list[Any] = []
    return prepare(cells, {cell.device for cell in cells}, lambda *call: calls.append(call))


@pytest.mark.skipif(torch.cuda.is_available(), reason="the expectations are a CPU's")
def test_preparing_answers_each_cell_in_order(settings: Make) -> None:
    good = settings()
    ddp = settings(parallel__name="ddp")
    half = settings(precision__autocast=True, precision__dtype="float16")
    there = prepared_for(good, half, ddp)
    assert there.problems == []
    assert [reason is None for reason in there.invalid] == [True, False, True]
    assert "float16" in there.invalid[1]
    assert there.plans[0].world_size == 1 and there.plans[2].world_size == 2
    assert there.plans[1] is None
    assert there.prepared[0] == there.prepared[2] and Path(there.prepared[0]).is_dir()
    assert there.prepared[1] is None
    assert set(there.hardware) == {"auto"} and there.hardware["auto"].device_type == "cpu"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data__batch_size": 51}, ["data.batch_size", "51", "50 training images"]),
        ({"model__name": "alexnet"}, ["data.image_size=8", "at least 63"]),
        ({"model__name": "lenet"}, ["model.name=lenet", "alexnet"]),
        ({"model__outputs": 2}, ["model.outputs=2", "3 classes"]),
        ({"data__name": "imagefolder", "data__root": "/nowhere/at/all", "data__classes": None,
          "data__source_size": None}, ["/nowhere/at/all"]),
    ],
)  # fmt: skip
def test_what_is_wrong_for_every_cell_is_said_once(
    settings: Make, changes: dict[str, Any], words: list[str]
) -> None:
    cells = [settings(**changes, seed=seed) for seed in range(3)]
    problems = prepared_for(*cells).problems
    assert len(problems) == 1, problems
    for word in words:
        assert word in problems[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__name": "lenet"}, "model.name=lenet"),
        ({"model__name": "nowhere:Net"}, "cannot import nowhere"),
        ({"model__name": "alexnet"}, "data.image_size=8 is too small"),
        ({"data__image_size": 9}, "data.image_size=9"),
        ({"data__batch_size": 51}, "exceeds the 50 training images"),
        ({"parallel__name": "ddp", "data__batch_size": 9, "device": "cpu"}, "divide by 2"),
    ],
)
def test_what_is_wrong_whatever_the_data_are_is_said_before_they_are_touched(
    settings: Make, changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "prepare", lambda *_: pytest.fail("the data were touched"))
    there = prepared_for(settings(), settings(**changes), settings(**changes, seed=1))
    assert len(there.problems) == 1 and words in there.problems[0]
    assert there.prepared == [None, None, None]


def test_no_data_are_touched_for_cells_that_cannot_run_here(
    settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "prepare", lambda *_: pytest.fail("the data were touched"))
    half = {"precision__autocast": True, "precision__dtype": "float16", "device": "cpu"}
    there = prepared_for(settings(**half), settings(**half, data__train_images=51))
    assert there.problems == [] and there.prepared == [None, None]
    assert all("float16" in reason for reason in there.invalid)


def folder_of_two_classes(root: Path) -> dict[str, Any]:
    """Settings of a folder whose images nobody could decode."""
    for name in ("train/a/1.png", "train/b/1.png", "test/a/1.png"):
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(b"no image")
    null = dict.fromkeys(("train_images", "test_images", "classes", "source_size"))
    given = {"name": "imagefolder", "root": str(root), "batch_size": 2, **null}
    return {f"data__{key}": value for key, value in given.items()}


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__outputs": 1}, r"model\.outputs=1, and the data has [23] classes"),
        (
            {"data__batch_size": 4096, "data__train_images": None},
            "4096 exceeds the (2|2048) training images",
        ),
        ({"model__name": "OfNone"}, "OfNone: could not be built"),
    ],
)
def test_what_does_not_fit_the_data_is_said_before_their_images_are_decoded(
    settings: Make,
    module: str,
    folder: bool,
    changes: dict[str, Any],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for store in ("store_arrays", "store_files"):
        decoding = f"amp_sweep.data.cache.{store}"
        monkeypatch.setattr(decoding, lambda *_: pytest.fail("images were decoded"))
    asked = {**(folder_of_two_classes(tmp_path / "images") if folder else {}), **changes}
    if "model__name" in asked:
        asked["model__name"] = f"{module}:{asked['model__name']}"
    cells = [settings(**asked, seed=seed) for seed in (0, 1)]
    there = prepared_for(*cells)
    (problem,) = there.problems
    assert re.search(words, problem), problem
    assert there.prepared == [None, None]


@pytest.mark.parametrize(("size", "problems"), [(8, 0), (9, 1)])
def test_a_network_that_wants_the_true_number_of_classes_is_asked_when_the_data_tell(
    settings: Make, module: str, size: int, problems: int
) -> None:
    there = prepared_for(settings(model__name=f"{module}:OfThree", data__image_size=size))
    assert len(there.problems) == problems
    assert all("data.image_size=9" in problem for problem in there.problems)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64])
def test_the_checksum_of_weights_takes_every_size_of_element(dtype: torch.dtype) -> None:
    weights = torch.nn.Parameter(torch.arange(3).to(dtype), requires_grad=False)
    before = checksum([weights])
    weights.data[1] += 1
    assert checksum([weights]) != before
