"""Real runs whose limit a person knows, and the page that is made of real runs."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from amp_sweep import record
from benchmarks import eager_step, in_turns, measuring_overhead
from benchmarks.figures.__main__ import main
from benchmarks.shared.ratio import interval
from tests.conftest import CommandLine

NETWORKS = '''
import functools, os, time
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

class Computing(nn.Sequential):
    "Large convolutions and little else."
    def __init__(self, num_classes):
        super().__init__(
            nn.Conv2d(3, 32, 5), nn.Conv2d(32, 32, 5), nn.Conv2d(32, 32, 5),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, num_classes),
        )

class Hollow(nn.Module):
    "A tiny layer after a long pause of the host. On a busy machine operations take long too."
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(3, num_classes)

    def forward(self, images):
        time.sleep(0.2)
        return self.head(images[:, :, 0, 0])

class FailsLater(nn.Module):
    "Trains through 16 steps; after them each forward pass in training raises on rank 1."
    def __init__(self, num_classes):
        super().__init__()
        self.norm, self.head, self.calls = nn.BatchNorm2d(3), nn.Linear(3, num_classes), 0

    def forward(self, images):
        self.calls += self.training
        if self.training and self.calls > 16 and os.environ.get("RANK") == "1":
            raise ArithmeticError("planted")
        return self.head(self.norm(images).mean(dim=(2, 3)))

def arrive_late(started, exchanged):
    time.sleep(max(0.0, started + 0.4 - time.monotonic()))
    return exchanged.value()[0]

def exchange_far(state, bucket):
    late = functools.partial(arrive_late, time.monotonic())
    return allreduce_hook(state, bucket).then(late)

def wrap(self, *given, **named):
    wrap.plain(self, *given, **named)
    self.register_comm_hook(None, exchange_far)

class Heavy(nn.Module):
    """Millions of weights of which each image uses a few: all their gradients are exchanged.

    Over a link that takes 0.4 s, however slowly this machine computes and moves its memory.
    """
    def __init__(self, num_classes):
        super().__init__()
        self.table = nn.Embedding(50_000, 64)
        self.head = nn.Linear(64, num_classes)
        if DistributedDataParallel.__init__ is not wrap:
            wrap.plain, DistributedDataParallel.__init__ = DistributedDataParallel.__init__, wrap

    def forward(self, images):
        rows = (images.mean(dim=(1, 2, 3)) * 1000).long().clamp(0, 49_999)
        return self.head(self.table(rows))
'''

SMALL = (
    *("data=synthetic", "data.image_size=64", "data.source_size=64", "data.classes=4"),
    *("data.batch_size=8", "data.train_images=64", "data.test_images=8", "epochs=2"),
    # However slow the machine is: no probe may be left out.
    *("device=cpu", "track=none", "measure.probes_s=1000"),
)


@pytest.fixture
def run(command: CommandLine) -> Callable[..., record.Record]:
    """Trains one cell and gives its record."""
    (command.folder / "nets.py").write_text(NETWORKS)

    def train(*overrides: str) -> record.Record:
        done = command.train(*SMALL, *overrides)
        assert done.code == 0, done.text
        (found,) = command.records().values()
        return found

    return train


def told(found: record.Record) -> str:
    return f"{found.metrics['diagnosis']}: {found.metrics['diagnosis_evidence']}"


def test_a_network_of_large_convolutions_is_compute_bound(
    run: Callable[..., record.Record],
) -> None:
    found = run("model.name=nets:Computing")
    assert found.metrics["diagnosis"] == "compute-bound", told(found)


def test_a_tiny_network_after_a_pause_of_its_host_is_launch_bound(
    run: Callable[..., record.Record],
) -> None:
    found = run("model.name=nets:Hollow")
    assert found.metrics["diagnosis"] == "launch-bound", told(found)
    assert "data.batch_size" in found.metrics["diagnosis_evidence"]


def test_a_large_model_over_a_slow_link_is_communication_bound(
    run: Callable[..., record.Record],
) -> None:
    found = run(
        *("model.name=nets:Heavy", "parallel=ddp", "optimizer=sgd", "optimizer.momentum=0"),
        *("data.batch_size=2", "data.train_images=8"),
    )
    assert found.metrics["diagnosis"] == "communication-bound", told(found)
    assert "gloo" in found.metrics["diagnosis_evidence"]
    assert found.metrics["communication_frac"] > 0.3
    # Both ranks hold all weights and, in ddp's buckets, all gradients; nothing is left over.
    metrics = found.metrics
    assert metrics["memory_gradients_mib"] == pytest.approx(metrics["memory_parameters_mib"])
    assert len(metrics["memory_parameters_mib"]) == 2
    for unknown, peak in zip(
        metrics["memory_unattributed_mib"], metrics["memory_probe_peak_mib"], strict=True
    ):
        assert unknown <= 0.03 * peak


def test_a_rank_that_fails_in_every_probe_costs_figures_and_not_the_cell(
    run: Callable[..., record.Record],
) -> None:
    # Batch norm's buffers are sent before a forward pass: the other rank must not wait for them.
    found = run("model.name=nets:FailsLater", "parallel=ddp", "launch.stall_timeout_s=60")
    assert found.status == record.COMPLETED
    notes = " ".join(found.notes)
    assert "the memory probe failed: RuntimeError: it failed on rank 1" in notes
    assert "the communication probe failed: RuntimeError: it failed on rank 1" in notes


@pytest.mark.slow
@pytest.mark.parametrize("two", [False, True])
def test_the_page_of_figures_is_made_of_real_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, two: bool
) -> None:
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(cache))
    arguments = ["--cpu", "--out", str(tmp_path), *(["--two"] if two else [])]
    # dp on two devices is not possible on a CPU.
    assert main(arguments) == (1 if two else 0)
    kind = "two" if two else "one"
    page = (tmp_path / f"figures-{kind}.md").read_text()
    runs = json.loads((tmp_path / f"records-{kind}.json").read_text())
    completed = [item for item in runs if item["status"] == record.COMPLETED]
    assert len(completed) == (3 if two else 9)
    for item in completed:
        metrics = item["metrics"]
        if item["name"] == "large":  # only its memory is told
            assert f"{metrics['memory_probe_peak_mib'][0]:,.1f}" in page
        else:
            assert f"{metrics['images_per_s']:,.0f}" in page
    if not two:
        assert "as written: none x fp32" in page and "All measuring on against all off" in page


def test_the_interval_of_a_ratio_is_the_paired_t_interval_on_logarithms() -> None:
    # By hand: logs 0.01, 0.03; mean 0.02, standard error 0.01, t(0.975, 1) = 12.706.
    ratio, low, high = interval([1.0100501670841679, 1.030454533953517])
    assert ratio == pytest.approx(1.0202013, rel=1e-6)
    assert (low, high) == pytest.approx((0.8984, 1.1585), rel=1e-3)


def test_the_cost_of_measuring_is_measured_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(tmp_path))
    settings = in_turns.settings_for(64, 0.05, 2, "fp32", "cpu")
    found = measuring_overhead.measure(settings, pairs=3, steps=2, epoch=20)
    assert (found.pairs, found.steps) == (3, 2)
    assert 0 < found.low <= found.ratio <= found.high
    assert found.step_ms > 0


def test_the_eager_cell_is_measured_against_the_bare_step_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(tmp_path))
    few = ["--pairs", "3", "--steps", "2", "--size", "64", "--width", "0.05", "--batch", "2"]
    assert eager_step.main([*few, "--precision", "bf16", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["pairs"], found["steps"]) == (3, 2)
    assert 0 < found["low"] <= found["ratio"] <= found["high"]


def test_windows_are_timed_in_turns_and_in_changing_order() -> None:
    order: list[str] = []

    def window(name: str, seconds: float) -> None:
        order.append(name)
        time.sleep(seconds)

    found = in_turns.compare(
        lambda: window("one", 0.04), lambda: window("other", 0.02), [], pairs=4, steps=2
    )
    assert "".join("a" if name == "one" else "b" for name in order) == "abab" + "baabbaab"
    assert 1.5 < found.ratio < 2.5 and found.step_ms == pytest.approx(10, abs=5)
