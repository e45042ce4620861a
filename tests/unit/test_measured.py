"""A cell's figures from its ranks to its record, and that measuring changes no result."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch

from amp_sweep import checkpoint, config, data, parallel, record
from amp_sweep.config import RunConfig
from amp_sweep.energy import Energy, Gpu, Nvml
from amp_sweep.measure import CpuTimes, cpu_times
from amp_sweep.messages import RankJob
from amp_sweep.parallel import Ranks
from amp_sweep.paths import RunPaths
from amp_sweep.precision import Observed, observe
from amp_sweep.probes import Findings
from amp_sweep.record import Record
from amp_sweep.worker import Invalid, honoured, measured, probed
from amp_sweep.worker import train as training
from amp_sweep.worker.build import Cell, build
from amp_sweep.worker.compile_ahead import Compiled
from amp_sweep.worker.figures import Figures
from amp_sweep.worker.state import Progress
from amp_sweep.worker.train import StopRequest, run_cell

Make = Callable[..., RunConfig]

pytestmark = pytest.mark.usefixtures("torch_switches")


@pytest.fixture
def settings(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Two epochs of four steps of a thin AlexNet, with dropout."""
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")

    def of(**changes: Any) -> RunConfig:
        return make(
            **{
                "model__width": 0.05,
                "data__name": "synthetic",
                "data__train_images": 16,
                "data__test_images": 6,
                "data__classes": 3,
                "data__source_size": 64,
                "data__batch_size": 4,
                "epochs": 2,
                "track__name": "none",
                **changes,
            }
        )

    yield of


def job_of(root: Path, cell: RunConfig) -> RankJob:
    root.mkdir(exist_ok=True)
    prepared = data.prepare(cell.data)
    plan = parallel.make_plan(cell.parallel, cell.data.batch_size, "global", "cpu", 1)
    config.save(cell, RunPaths(root).config)
    return RankJob(str(root), str(prepared.folder), plan, time.monotonic(), 1, "127.0.0.1", False)


def run(root: Path, cell: RunConfig) -> Record:
    job, paths = job_of(root, cell), RunPaths(root)
    current = Record("m", config.fingerprint(cell), record.RUNNING, {}, [], config.to_dict(cell))
    current.segments.append({"from_epoch": None})
    record.write(paths.record, current)
    run_cell(job, paths, Ranks(0, 0, 1), StopRequest())
    return record.read(paths.record)


def assert_each_null_has_its_reason(found: Record) -> None:
    told = {name for note in found.notes for name in note.partition(": ")[0].split(", ")}
    assert {name for name, value in found.metrics.items() if value is None} <= told


HALF = {"precision__name": "scaler", "precision__autocast": True, "precision__scaler": True}


@pytest.mark.parametrize("precision", [{}, HALF], ids=["fp32", "scaler"])
def test_weights_are_equal_with_all_measuring_on_and_off(
    tmp_path: Path, settings: Make, precision: dict[str, Any]
) -> None:
    off = {"measure__step_times": False, "measure__energy": False, "measure__probes": False}
    runs = {"on": settings(**precision), "off": settings(**precision, **off)}
    assert config.fingerprint(runs["on"]) == config.fingerprint(runs["off"])
    found = {name: run(tmp_path / name, cell) for name, cell in runs.items()}
    kept = {
        name: checkpoint.load(
            RunPaths(tmp_path / name).final_weights, config.fingerprint(runs[name])
        )["weights"]
        for name in runs
    }
    assert kept["on"].keys() == kept["off"].keys()
    assert all(torch.equal(kept["on"][key], kept["off"][key]) for key in kept["on"])
    assert [row["train_loss"] for row in found["on"].epochs] == [
        row["train_loss"] for row in found["off"].epochs
    ]
    assert found["on"].metrics["memory_probe_peak_mib"][0] > 0
    assert found["off"].metrics["memory_probe_peak_mib"] is None
    assert any("measure.probes=false" in note for note in found["off"].notes)
    for each in found.values():
        assert_each_null_has_its_reason(each)


def test_a_record_holds_every_figure_or_its_reason(tmp_path: Path, settings: Make) -> None:
    found = run(tmp_path / "run", settings(**HALF, measure__price_per_hour=3.0))
    metrics = found.metrics
    assert set(metrics) >= {*probed.PROBED, *measured.ENERGY, "contended", "cost"}
    assert_each_null_has_its_reason(found)
    assert any(note.startswith("contended") for note in found.notes) == metrics["contended"]
    shares = [metrics[name] for name in probed.SHARES]
    assert sum(shares) == pytest.approx(1)
    kinds = ("parameters", "gradients", "optimizer", "activations", "input", "workspace",
             "unattributed")  # fmt: skip
    total = sum(metrics[f"memory_{kind}_mib"][0] for kind in kinds)
    assert total == pytest.approx(metrics["memory_probe_peak_mib"][0])
    assert metrics["mfu"] == pytest.approx(metrics["achieved_tflops"] / metrics["ceiling_tflops"])
    assert metrics["achieved_tflops"] == pytest.approx(
        metrics["flops_per_image"] * metrics["images_per_s"] / 1e12
    )
    # Above what it was: 0 where earlier tests of this process had taken as much.
    assert 0 <= metrics["peak_rss_above_mib"][0] < metrics["peak_rss_mib"][0]
    # One device, from the launch to the last checkpoint, in which training is contained.
    assert metrics["train_time_s"] < metrics["cost"] * 3600 / 3.0 < 300
    (row,) = found.effective["observed_dtypes_by_layer"]
    assert row == {
        "rank": 0,
        "device": "cpu",
        "convolution": ["bfloat16"],
        "linear": ["bfloat16"],
        "loss": ["float32"],
    }


def test_an_artificially_slow_loader_makes_a_run_input_bound(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = data.Split.batches

    def slow(self: data.Split, indices: Any) -> Iterator[data.Raw]:
        for raw in real(self, indices):
            time.sleep(0.3)
            yield raw

    monkeypatch.setattr(data.Split, "batches", slow)
    found = run(tmp_path / "run", settings())
    assert found.metrics["diagnosis"] == "input-bound", found.metrics["diagnosis_evidence"]
    assert "AMP cannot help" in found.metrics["diagnosis_evidence"]
    assert found.metrics["share_input"] == found.metrics["data_wait_frac"] > 0.5


def test_a_probe_that_fails_never_fails_the_cell(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object, **_named: object) -> None:
        raise RuntimeError("no snapshot here")

    monkeypatch.setattr("amp_sweep.probes.memory_use.measure", fail)
    monkeypatch.setattr("amp_sweep.probes.busy.measure", fail)
    found = run(tmp_path / "run", settings())
    assert found.metrics["test_accuracy"] is not None
    assert found.metrics["memory_parameters_mib"] is None
    assert found.metrics["diagnosis"] == "undetermined"
    assert "no snapshot here" in found.metrics["diagnosis_evidence"]
    assert any("memory_parameters_mib" in note and "no snapshot" in note for note in found.notes)


def test_an_interrupted_run_says_why_it_has_no_probes(tmp_path: Path, settings: Make) -> None:
    class Stop(StopRequest):
        def go_on(self, ranks: Ranks, step: int) -> bool:
            self.requested = step >= 2
            return super().go_on(ranks, step)

    cell, root = settings(), tmp_path / "run"
    job, paths = job_of(root, cell), RunPaths(root)
    current = Record("m", config.fingerprint(cell), record.RUNNING, {}, [], config.to_dict(cell))
    current.segments.append({"from_epoch": None})
    record.write(paths.record, current)
    assert run_cell(job, paths, Ranks(0, 0, 1), Stop()) == record.INTERRUPTED
    found = record.read(paths.record)
    assert found.metrics["diagnosis"] is None
    assert any("diagnosis" in note and "after the last epoch" in note for note in found.notes)
    assert found.metrics["test_accuracy"] is None and found.metrics["first_step_s"] > 0
    assert_each_null_has_its_reason(found)


# ------------------------------------------------------------------ what was asked for


@pytest.fixture
def cell(tmp_path: Path, settings: Make) -> Iterator[tuple[Cell, list[dict[str, Any]]]]:
    """A cell after its first step, with what its only rank saw."""
    built = build(
        job_of(tmp_path / "run", settings(**HALF)), RunPaths(tmp_path / "run"), Ranks(0, 0, 1)
    )
    seen = Observed()
    (raw,) = built.train.batches(torch.arange(4).view(1, 4))
    with observe(built.loss, seen):
        built.trainer.loss(*built.train.to_input(raw))
    yield built, [honoured.seen_by_rank(built, seen, None)]
    built.train.close()
    built.test.close()


def test_a_run_that_is_what_was_asked_for_has_no_differences(
    cell: tuple[Cell, list[dict[str, Any]]],
) -> None:
    built, ranks = cell
    assert honoured.differences(built, Progress(epoch=2), ranks) == []


@pytest.mark.parametrize(
    ("section", "change", "words"),
    [
        ("precision", {"scaler": False}, "gradient scaler: asked for False, ran True"),
        ("optimizer", {"name": "sgd"}, "optimizer: asked for sgd, ran adamw"),
        ("scheduler", {"name": "plateau"}, "asked for ReduceLROnPlateau, ran CosineAnnealingLR"),
        ("parallel", {"name": "ddp"}, "parallel: asked for ddp, ran none"),
        (
            "parallel",
            {"find_unused_parameters": True},
            "parallel.find_unused_parameters: asked for True, ran False",
        ),
        ("data", {"image_size": 32}, "image size: asked for 32, 32, ran 64, 64"),
        ("data", {"placement": "host"}, "data.placement: asked for host, ran device"),
    ],
)
def test_what_ran_otherwise_than_asked_for_is_named(
    cell: tuple[Cell, list[dict[str, Any]]], section: str, change: dict[str, Any], words: str
) -> None:
    built, ranks = cell
    part = dataclasses.replace(getattr(built.config, section), **change)
    built.config = dataclasses.replace(built.config, **{section: part})
    (found,) = honoured.differences(built, Progress(epoch=2), ranks)
    assert words in found


def test_missing_epochs_replicas_and_images_are_named(
    cell: tuple[Cell, list[dict[str, Any]]],
) -> None:
    built, ranks = cell
    assert honoured.differences(built, Progress(epoch=1), ranks) == ["epochs: asked for 2, ran 1"]
    ranks[0]["images"]["cpu"][0] = 3
    assert honoured.differences(built, Progress(epoch=2), ranks) == [
        "images per step: asked for 4, ran 3"
    ]
    plan = dataclasses.replace(built.job.plan, replicas=2, world_size=2)
    built.job = dataclasses.replace(built.job, plan=plan)
    found = honoured.differences(built, Progress(epoch=2), ranks)
    assert "replicas: asked for 2, ran 1" in found and "processes: asked for 2, ran 1" in found


@pytest.mark.parametrize(
    ("compiled", "found"),
    [
        (None, ["torch.compile: asked for True, ran False"]),
        (Compiled(1.0, 3, 3), ["layers that torch.compile left as they are: asked for not all, "
                               "ran all"]),
        (Compiled(1.0, 3, 2), []),
        (Compiled(1.0, 0, 0), []),  # a network without such layers
    ],
)  # fmt: skip
def test_layers_that_were_not_compiled_though_asked_for_are_named(
    cell: tuple[Cell, list[dict[str, Any]]], compiled: Compiled | None, found: list[str]
) -> None:
    built, ranks = cell
    built.speedups = dataclasses.replace(built.speedups, compile="default")
    ranks[0] |= {
        name: value
        for name, value in honoured.seen_by_rank(built, Observed(), compiled).items()
        if "compiled" in name
    }
    assert honoured.differences(built, Progress(epoch=2), ranks) == found


def test_a_cell_whose_run_was_another_is_invalid_and_says_both(
    tmp_path: Path, settings: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = training.build

    def with_another_optimizer(*arguments: Any) -> Cell:
        built = real(*arguments)
        built.trainer.optimizer = torch.optim.SGD(built.trainer.parameters, lr=0.1)
        built.scheduler = torch.optim.lr_scheduler.LambdaLR(built.trainer.optimizer, lambda _: 1.0)
        return built

    monkeypatch.setattr(training, "build", with_another_optimizer)
    with pytest.raises(Invalid, match="optimizer: asked for adamw, ran sgd"):
        run(tmp_path / "run", settings(scheduler__name="constant"))


def test_the_probes_are_told_of_the_mean_step_without_the_first_epoch(
    cell: tuple[Cell, list[dict[str, Any]]],
) -> None:
    rows = [{"images_per_s": rate, "train_time_s": 2.0} for rate in (1.0, 100.0, 50.0)]
    found = probed.subject(cell[0], Progress(epoch=3, epochs=rows), None)
    assert found.step_s == pytest.approx((0.04 + 0.08) / 2)  # batches of 4
    assert found.train_s == 6.0 and found.eager
    alone = probed.subject(cell[0], Progress(epoch=1, epochs=rows[:1]), None)
    assert alone.step_s == pytest.approx(4.0)
    assert probed.subject(cell[0], Progress(), None).step_s is None
    parts = [*cell[0].train.stored(), *cell[0].test.stored()]
    assert [tensor.data_ptr() for tensor in found.stored] == [t.data_ptr() for t in parts]


# ------------------------------------------------------------------ merging ranks


def merged(ranks: list[Findings], **changes: Any) -> Figures:
    values: dict[str, Any] = {
        "images_per_s": 100.0,
        "wait_frac": 0.1,
        "global_batch": 10,
        "replicas": 2,
        "effective": {"device_type": "cuda", "backend": "nccl", "replicas": 2},
    }
    return probed.figures_of(ranks, **(values | changes))


def findings(**changes: Any) -> Findings:
    return Findings(
        {
            "flops_per_image": 4e9,
            "communication_s": 0.02,
            "busy_compute_s": 0.03,
            "busy_memory_s": 0.01,
            "busy_communication_s": 0.0,
            "memory_parameters_mib": [1.0],
            "ceiling_tflops": 100.0,
            "ceiling_gb_per_s": 4000.0,
            **changes,
        }
    )


def test_figures_of_two_ranks_become_those_of_the_run() -> None:
    two = findings(busy_compute_s=0.05, communication_s=0.01, memory_parameters_mib=[2.0])
    del two.metrics["ceiling_tflops"]  # rank 0 alone measures the ceilings
    metrics = merged([findings(), two]).metrics
    assert metrics["memory_parameters_mib"] == [1.0, 2.0]
    # A step lasts 10 / 100 = 0.1 s.
    assert metrics["communication_frac"] == pytest.approx(0.2)  # of the rank that waits longest
    assert metrics["share_compute"] == pytest.approx(0.4)  # the mean of 0.3 and 0.5
    assert metrics["share_memory"] == pytest.approx(0.1)
    assert metrics["share_gaps"] == pytest.approx(0.2)
    assert metrics["achieved_tflops"] == pytest.approx(4e9 * 100 / 2 / 1e12)  # a device
    assert metrics["mfu"] == pytest.approx(0.002)


def test_a_ceiling_that_the_training_passed_and_a_wait_longer_than_the_step_are_no_shares() -> None:
    figures = merged([findings(ceiling_tflops=0.1, communication_s=0.5)])
    assert figures.metrics["achieved_tflops"] == pytest.approx(0.2)
    assert figures.metrics["mfu"] is None
    assert any(note.startswith("mfu: the training reached more") for note in figures.notes())
    assert figures.metrics["communication_frac"] == 1.0


def test_a_figure_that_one_rank_lacks_is_null_with_that_ranks_reason() -> None:
    broken = findings()
    broken.missing(("memory_parameters_mib",), "the memory probe failed: ValueError: x")
    figures = merged([findings(), broken])
    assert figures.metrics["memory_parameters_mib"] is None
    assert any("memory probe failed" in note for note in figures.notes())


def test_dps_own_copies_are_communication_by_the_profiler() -> None:
    one = findings(busy_communication_s=0.04)
    one.missing(("communication_s",), "dp copies within its own process")
    metrics = merged([one]).metrics
    assert metrics["communication_frac"] is None
    assert metrics["share_communication"] == pytest.approx(0.4)
    assert "communication_s" not in metrics


def test_an_exchange_that_ddp_could_not_measure_leaves_no_shares_but_the_wait() -> None:
    two = findings()
    two.missing(("communication_s",), "the step is a CUDA graph")
    figures = merged([findings(), two], effective={"device_type": "cuda", "parallel": "ddp"})
    assert figures.metrics["communication_frac"] is None
    assert figures.metrics["share_input"] == 0.1
    assert {figures.metrics[f"share_{name}"] for name in ("compute", "communication", "gaps")} == {
        None
    }
    assert figures.metrics["diagnosis"] == "undetermined"
    assert "CUDA graph" in figures.metrics["diagnosis_evidence"]


def test_on_a_cpu_shares_are_of_the_probes_own_window() -> None:
    # Twice as slow as the training: the shares are as if it had been alike.
    one = findings(busy_window_s=0.08, communication_s=0.02)
    metrics = merged([one], wait_frac=0.0).metrics
    assert metrics["share_compute"] == pytest.approx(0.3)
    assert metrics["share_communication"] == pytest.approx(0.2)
    assert metrics["share_gaps"] == pytest.approx(0.4)


def test_without_a_throughput_there_are_no_shares() -> None:
    figures = merged([findings()], images_per_s=None, wait_frac=None)
    assert figures.metrics["share_compute"] is None
    assert figures.metrics["diagnosis"] == "undetermined"


def spent(joules: float, seconds: float) -> Energy:
    """Two windows of 250 images each on one rank."""
    return Energy(joules, seconds, 2, 500, joules, seconds, 2, 500)


@pytest.mark.parametrize(
    ("energies", "contended", "joules", "marked"),
    [
        ([spent(100, 10), spent(50, 10)], [False, False], 150, False),
        ([spent(100, 10), spent(50, 10)], [False, True], 150, True),
        ([spent(100, 10), spent(50, 1)], [False, None], None, None),
        ([spent(100, 10), Energy(reason="no counter")], [None, True], None, True),
    ],
)
def test_energy_is_the_sum_over_ranks_and_any_neighbour_counts(
    energies: list[Energy], contended: list[bool | None], joules: float | None, marked: bool | None
) -> None:
    figures = measured.energy_figures(energies, contended)
    assert figures.metrics["energy_j"] == joules
    assert figures.metrics["energy_j_per_image"] == (joules / 1000 if joules else None)
    assert figures.metrics["contended"] is marked
    assert not any(note.startswith("contended") for note in figures.notes())


@pytest.mark.parametrize(
    ("pids", "contended"), [([7], False), ([7, 8], True), ([7, 8, 9], True), (None, None)]
)
def test_one_process_of_others_on_the_device_is_enough(
    monkeypatch: pytest.MonkeyPatch, pids: list[int] | None, contended: bool | None
) -> None:
    state = [Gpu(None, None, None, None, None, pids)]
    monkeypatch.setattr(Nvml, "state", lambda _self: state)
    assert measured.contended(Nvml(), [7]) is contended


def rank_on(host: str, *, own_s: float, busy_s: float, cores: int = 4, threads: int = 2) -> Any:
    """Ten seconds of a rank with two threads, on a host whose cores were busy for `busy_s`."""
    before = CpuTimes(at_s=5.0, host_busy_s=100.0, own_s=3.0, host_cores=cores)
    after = CpuTimes(15.0, 100.0 + busy_s, 3.0 + own_s, cores)
    return {"hostname": host, "threads": threads, "cpu": (before, after)}


@pytest.mark.parametrize(
    ("ranks", "contended"),
    [
        ([rank_on("a", own_s=19, busy_s=20)], False),
        # Two of four cores are others' and two are left.
        ([rank_on("a", own_s=19, busy_s=39)], False),
        ([rank_on("a", own_s=15, busy_s=39)], True),
        ([rank_on("a", own_s=19, busy_s=20, cores=2)], False),
        ([rank_on("a", own_s=12, busy_s=20, cores=2)], True),
        # Ranks of one host are not one another's disturbance; another host's are seen apart.
        ([rank_on("a", own_s=10, busy_s=20, cores=2, threads=1)] * 2, False),
        (
            [
                rank_on("a", own_s=10, busy_s=10, threads=1),
                rank_on("b", own_s=4, busy_s=40, threads=1),
            ],
            True,
        ),
    ],
)
def test_a_cpu_is_contended_where_others_left_too_few_cores(ranks: Any, contended: bool) -> None:
    assert measured.cores_contended(ranks) is contended


def test_this_processs_work_is_its_own() -> None:
    before = cpu_times()
    ends = time.process_time() + 0.3
    while time.process_time() < ends:
        sum(range(1000))
    after = cpu_times()
    assert 0.25 < after.own_s - before.own_s < 1.0
    assert after.host_busy_s - before.host_busy_s > 0.05
    assert 0.1 < after.at_s - before.at_s < 30 and after.host_cores >= 1


def test_its_childrens_work_is_its_own_too_and_waiting_is_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Child:
        def cpu_times(self) -> SimpleNamespace:
            return SimpleNamespace(user=20.0, system=30.0)

    class Gone:
        def cpu_times(self) -> None:
            raise psutil.NoSuchProcess(1)

    class Process:
        def children(self, recursive: bool = False) -> list[Child | Gone]:
            return [Gone(), Child(), *([Child()] if recursive else [])]

    now = psutil.cpu_times()
    # 70 s of work; a guest's 6 s are in its host's user time already.
    host = now._make([0.0] * len(now))._replace(
        user=50.0, system=20.0, idle=1000.0, iowait=30.0, guest=5.0, guest_nice=1.0
    )
    monkeypatch.setattr(psutil, "cpu_times", lambda: host)
    monkeypatch.setattr(psutil, "Process", Process)
    before = time.process_time()
    found = cpu_times()
    assert found.host_busy_s == pytest.approx(70)
    assert 100 <= found.own_s - before < 110
