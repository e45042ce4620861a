"""The story of a run: everything in the record is told, and what is missing says why."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from amp_sweep import explain, record
from amp_sweep.explain import command, outcome
from amp_sweep.record import Record


def full() -> Record:
    """A run on two GPUs in which every figure is known, each with a value of its own."""
    kinds = ("parameters", "gradients", "optimizer", "activations", "input", "workspace",
             "unattributed")  # fmt: skip
    memory: dict[str, Any] = {
        f"memory_{kind}_mib": [100.0 + index, 200.0 + index] for index, kind in enumerate(kinds)
    }
    return Record(
        name="story",
        fingerprint="f" * 64,
        status=record.COMPLETED,
        cell={"model": "alexnet", "data": "cifar10", "parallel": "ddp", "precision": "scaler",
              "seed": 3},
        overrides=["parallel=ddp", "precision=scaler"],
        config={
            "epochs": 20,
            "model": {"name": "alexnet", "width": 0.5},
            "data": {"name": "cifar10", "image_size": 227, "batch_size": 64,
                     "batch_mode": "global", "pipeline": "resident"},
            "parallel": {"name": "ddp", "devices": 2},
            "precision": {"name": "scaler", "autocast": True, "dtype": "auto", "scaler": True},
            "optimizer": {"name": "adamw", "lr": 1e-4},
            "scheduler": {"name": "plateau"},
        },
        effective={
            "device_names": ["NVIDIA H200"] * 2, "replicas": 2, "world_size": 2,
            "backend": "nccl", "global_batch": 64, "per_device_batch": 32, "steps": 15620,
            "train_images": 50000, "test_images": 10000, "data_placement": "device",
            "fused_input": True, "autocast_dtype": "float16", "scaler_enabled": True,
            "tf32_matmul": False, "tf32_cudnn": True, "cudnn_benchmark": True,
            "memory_format": "channels_last",
            "compile": "default", "cuda_graph": True, "threads": 8,
            "observed_dtypes_by_layer": [
                {"rank": rank, "device": f"cuda:{rank}", "convolution": ["float16"],
                 "linear": ["float16"], "loss": ["float32"]}
                for rank in (0, 1)
            ],
        },
        metrics={
            "startup_s": 3.5, "compile_s": 17.0, "first_step_s": 1.25, "train_time_s": 61.0,
            "wall_time_s": 95.0, "step_ms_p50": 4.11, "step_ms_p95": 4.22, "step_ms_p99": 4.33,
            "images_per_s": 15555.5, "test_accuracy": 0.8186, "best_test_accuracy": 0.8201,
            "train_loss": 0.321, "optimizer_steps": 15618, "share_input": 0.1, "share_gaps": 0.2,
            "share_compute": 0.4, "share_memory": 0.25, "share_communication": 0.05,
            "communication_frac": 0.05, "diagnosis": "mixed",
            "diagnosis_evidence": "nothing dominates the time", **memory,
            "memory_probe_peak_mib": [721.0, 1421.0], "memory_activations_saved_mib": [50.5, 60.5],
            "memory_input_resident_mib": [33.25, 34.25], "peak_allocated_mib": [1533.0, 1600.0],
            "peak_reserved_mib": [1700.0, 1800.0], "peak_cached_mib": [167.0, 200.0],
            "peak_rss_mib": [2222.0, 2333.0], "peak_rss_above_mib": [1111.0, 1212.0],
            "energy_j": 31234.0, "energy_j_per_image": 0.03123, "contended": False,
            "price_per_hour": 4.0, "cost": 0.2111, "flops_per_image": 4.155e9,
            "achieved_tflops": 32.3, "ceiling_tflops": 789.0, "ceiling_gb_per_s": 4240.0,
            "mfu": 0.0409, "underflow_frac": 0.001, "underflow_frac_unscaled": 0.25,
            "underflow_frac_scaled": 0.001, "underflow_scale": 65536.0,
            "scaler_final_scale": 65536.0, "scaler_skipped_steps": 2,
        },
        environment={
            "python": "3.12.3", "torch": "2.11.0", "torchvision": "0.26.0", "cuda": "13.0",
            "driver": "580.1", "gpu": "NVIDIA H200", "cpu": "Some CPU", "cores": 16,
            "hostname": "node7", "git_commit": "abcdef0", "git_dirty": True,
            "slurm_job_ids": ["4711"],
        },
        segments=[
            {
                "started_at": "2026-01-01T00:00:00", "from_epoch": 0, "to_epoch": 20,
                "gpus_start": [],
                "gpus_end": [{"sm_clock_mhz": 1755, "memory_clock_mhz": 3201,
                              "power_limit_w": 700.0, "temperature_c": 61,
                              "throttle_reasons": ["power cap"], "processes": [1]}],
            }
        ],
        notes=["a remark of its own"],
    )  # fmt: skip


def told(run: Record, width: int = 200) -> str:
    console = Console(width=width, highlight=False)
    with console.capture() as capture:
        for part in command.story(run, Path("outputs/story/run")):
            console.print(part)
    return capture.get()


# Each figure of `full`, with its name and its unit.
STORY = """
ddp x scaler, seed 3: completed
outputs/story/run
In a word
  mixed: nothing dominates the time
Asked for
  command    parallel=ddp precision=scaler
  model      alexnet, width 0.5
  data       cifar10, 227 px, input: resident
  batch      64 (global)
  epochs     20
  parallel   ddp, devices 2
  precision  scaler, autocast, dtype auto, gradient scaler
  optimizer  adamw, lr 0.0001
  scheduler  plateau
What ran
  devices          2 x NVIDIA H200
  processes        2
  backend          nccl
  batch            64 a step, 32 a device
  steps            15620 in all
  images           50000 to train, 10000 to test
  input            device, one kernel
  autocast         float16
  computed in      convolution float16, linear float16, loss float32 (alike on 2 replicas)
  gradient scaler  on
  TF32             matrix products off, convolutions on
  cudnn benchmark  on
  memory format    channels_last
  speed-ups        compile=default, cuda_graph=True
  threads          8
Time
  start-up    3.5 s
  compiling   17.0 s
  first step  1.2 s
  training    1 m 01 s
  whole run   1 m 35 s
  a step      4.11 / 4.22 / 4.33 ms (p50 / p95 / p99)
  images/s    15,555.5
Where the time went
  waiting for input              10%  ███
  nothing to do                  20%  ██████
  matrix products, convolutions  40%  ████████████
  other work on the device       25%  ████████
  waiting for gradients           5%  ██
Result
  test accuracy    0.8186
  best epoch's     0.8201
  train loss       0.3210
  optimizer steps  15,618
Memory
  at the peak of a step, MiB     device 0          device 1
  parameters                        100.0   13.9%     200.0   14.1%
  gradients                         101.0   14.0%     201.0   14.1%
  optimizer                         102.0   14.1%     202.0   14.2%
  activations                       103.0   14.3%     203.0   14.3%
    of which saved for backward      50.5    7.0%      60.5    4.3%
  input                             104.0   14.4%     204.0   14.4%
    of which data set                33.2    4.6%      34.2    2.4%
  workspace                         105.0   14.6%     205.0   14.4%
  unattributed                      106.0   14.7%     206.0   14.5%
  sum                               721.0  100.0%   1,421.0  100.0%
  peak allocated in training  1,533, 1,600 MiB
  peak reserved               1,700, 1,800 MiB
  reserved, not allocated     167, 200 MiB
  process (RSS)               2,222, 2,333 MiB
  process above its start     1,111, 1,212 MiB
Energy and cost
  energy                        31,234 J
  per image                     0.03123 J
  other programs on the device  no
  GPU 0 at the end              SM 1755 MHz, memory 3201 MHz, power limit 700.0 W, 61 C,
                                clock held by: power cap
  cost                          0.2111 at 4 per device and hour
Work
  per image     4.155 GFLOP, forward and backward
  achieved      32.3 TFLOP/s a device
  ceiling       789 TFLOP/s, measured on this device
  share of it   4.1%
  copy ceiling  4,240 GB/s
Mixed precision
  gradients      the scaler mattered at the end of training: 25.000% of the gradient's elements
                 become zero in half precision without a scale, 0.100% with 65536
  final scale    65536
  skipped steps  2
Communication
  exchange of gradients  adds 5.0% to a step, not hidden behind other work
Environment
  host        node7
  GPU         NVIDIA H200
  CPU         Some CPU, 16 cores for this run
  versions    python 3.12.3, torch 2.11.0, torchvision 0.26.0, cuda 13.0, driver 580.1
  commit      abcdef0, with uncommitted changes
  SLURM jobs  4711
Notes
  - a remark of its own
"""


def test_every_known_figure_stands_beside_its_name() -> None:
    assert told(full()).split() == STORY.split()


@pytest.mark.parametrize(
    ("section", "changes", "line"),
    [
        ("metrics", {"contended": True}, "other programs on the device yes: times are not"),
        ("metrics", {"share_gaps": None}, "gaps: not known: the profiler lost it"),
        ("effective", {"scaler_enabled": False}, "gradient scaler off"),
        ("effective", {"scaler_enabled": False}, "gradients a scaler would matter"),
        ("effective", {"world_size": 1}, "exchange of gradients none: one process"),
        ("effective", {"compile": "off"}, "speed-ups cuda_graph=True"),
        ("config", {"precision": {"name": "fp32", "tf32": True}}, "precision fp32, TF32"),
        (
            "config",
            {"data": {"pipeline": "x", "decode": "device"}},
            "x, JPEG decoded by the device",
        ),
        ("environment", {"git_dirty": False}, "commit abcdef0 SLURM"),
    ],
)
def test_what_else_a_record_may_say_is_told(
    section: str, changes: dict[str, Any], line: str
) -> None:
    run = full()
    getattr(run, section).update(changes)
    # The first names a figure and gives no reason.
    run.notes = ["share_gaps is odd", "share_gaps: the profiler lost it"]
    assert line in " ".join(told(run).split())


def test_the_parts_of_a_resumed_run_are_told_with_the_gpus_of_the_last() -> None:
    run = full()
    run.segments = [
        {"started_at": "monday", "from_epoch": 0, "to_epoch": 3, "hostname": "node7",
         "gpus_end": [{"temperature_c": 50}]},
        {"started_at": "tuesday", "from_epoch": 3, "to_epoch": 20, "device": "cuda",
         "gpus_end": [{"temperature_c": 70}]},
    ]  # fmt: skip
    text = " ".join(told(run).split())
    assert "Segments monday epochs 0 to 3 on node7 tuesday epochs 3 to 20 on cuda" in text
    assert "70 C" in text and "50 C" not in text


def test_what_is_not_known_says_why() -> None:
    run = full()
    for name in ("energy_j", "images_per_s", "memory_probe_peak_mib", "underflow_frac_unscaled"):
        run.metrics[name] = None
    run.notes = [
        "energy_j, energy_j_per_image: no counter here",
        "images_per_s: no step left after the warm-up",
        "memory_parameters_mib: the memory probe failed: ValueError: x: y",
        "underflow_frac: probes are off",
    ]
    text = told(run)
    assert "not known: no counter here" in text
    assert "not known: no step left after the warm-up" in text
    assert "breakdown not known: the memory probe failed: ValueError: x: y" in text
    assert "not looked at: probes are off" in text


@pytest.mark.parametrize(
    ("without", "scaled", "enabled", "words"),
    [
        (0.25, 0.001, True, "the scaler mattered"),
        (0.0011, 0.0002, True, "the scaler did not matter"),
        (0.0012, 0.0001, True, "the scaler mattered"),
        (0.25, 0.001, False, "a scaler would matter"),
        (0.0, 0.0, False, "a scaler would not matter"),
    ],
)
def test_did_the_scaler_matter(without: float, scaled: float, enabled: bool, words: str) -> None:
    metrics = {
        "underflow_frac_unscaled": without,
        "underflow_frac_scaled": scaled,
        "underflow_scale": 1024.0,
    }
    assert str(outcome.scaler_words(metrics, enabled)).startswith(words)


def test_replicas_that_computed_differently_are_told_apart() -> None:
    run = full()
    run.effective["observed_dtypes_by_layer"][1]["convolution"] = ["float32"]
    text = told(run)
    assert "rank 0 cuda:0: convolution float16" in text
    assert "rank 1 cuda:1: convolution float32" in text


def test_one_process_has_no_exchange_though_its_share_is_not_known() -> None:
    run = full()
    run.metrics["communication_frac"] = None
    assert "exchange of gradients  not known" in told(run)
    run.effective |= {"world_size": 1, "replicas": 1}
    assert "exchange of gradients  none: one process" in told(run)


def test_an_error_is_told_with_its_rank_and_traceback() -> None:
    run = full()
    run.status = record.FAILED
    run.error = {
        "type": "ValueError", "message": "bad [red]label[/red]", "rank": 1,
        "traceback": "Traceback\n  line", "exitcode": 1,
    }  # fmt: skip
    text = told(run)
    assert "ValueError (rank 1): bad [red]label[/red]" in text
    assert "Traceback" in text


def test_a_pending_record_tells_what_was_asked_for() -> None:
    run = full()
    pending = Record(run.name, run.fingerprint, record.PENDING, run.cell, [], run.config)
    text = told(pending)
    assert "pending" in text and "Asked for" in text and "Time" not in text


def test_control_sequences_of_a_record_reach_no_terminal() -> None:
    run = full()
    run.notes = ["\x1b[2Jgone\x07"]
    assert "\x1b" not in told(run) and "\x07" not in told(run)


def test_the_command_reads_runs_and_sweeps_and_needs_no_torch(tmp_path: Path) -> None:
    folder = tmp_path / "sweep" / "one"
    folder.mkdir(parents=True)
    record.write(folder / "record.json", full())
    for argument in (folder, folder.parent):
        text = (
            "import sys; from amp_sweep import explain; code = explain.main(sys.argv[1:]); "
            "assert 'torch' not in sys.modules; sys.exit(code)"
        )
        done = subprocess.run(
            [sys.executable, "-c", text, str(argument)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "ddp x scaler" in done.stdout


def test_a_folder_without_a_run_and_a_damaged_record_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain.main([str(tmp_path)]) == 1
    assert "no run in" in capsys.readouterr().err
    (tmp_path / "record.json").write_text(json.dumps({"schema_version": 1}))
    assert explain.main([str(tmp_path)]) == 1
    assert "no field" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("metrics", "share_input", "x"),
        ("metrics", "memory_parameters_mib", -5),
        ("metrics", "memory_probe_peak_mib", []),
        ("metrics", "step_ms_p50", "x"),
        ("metrics", "optimizer_steps", 1e308),
        ("effective", "device_names", -5),
        ("effective", "observed_dtypes_by_layer", "x"),
        ("environment", "slurm_job_ids", -5),
        ("config", "model", {"name": "alexnet", "width": "x"}),
    ],
)
def test_a_damaged_part_of_a_record_costs_that_part_only(
    section: str, name: str, value: object
) -> None:
    run = full()
    getattr(run, section)[name] = value
    text = told(run)
    assert "Mixed precision" in text and "Environment" in text
    assert text.count("damaged") <= 2
