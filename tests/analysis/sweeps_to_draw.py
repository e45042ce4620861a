"""Synthetic sweeps with everything that a report can show: curves, memory, failures, long names."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from amp_sweep import record
from tests.analysis.synthetic import PARALLELS, PRECISIONS, write_run

EPOCHS = 12
SPEED = {"fp32": 9000.0, "autocast": 16500.0, "scaler": 15000.0}
SHARED = {"none": 1.0, "dp": 1.3, "ddp": 1.75}

BOOM = {
    "type": "RuntimeError",
    "message": "CUDA error: an illegal memory access was encountered",
    "traceback": "Traceback (most recent call last):\n  ...\nRuntimeError: CUDA error",
    "rank": 1,
    "exitcode": None,
}

# A precision, or a parallelism and its number of devices, that a person may have named.
LONG_PRECISIONS = (
    "fp32",
    "autocast_bfloat16_with_fp32_reductions",
    "scaler_growth_interval_200",
    "fp8_e4m3_hybrid_delayed_scaling",
    "tf32",
)
LONG_PARALLELS = (("none", "auto"), ("dp", "auto"), ("ddp", 2), ("ddp", 4), ("ddp", 8))


def metrics(speed: float, half: bool, devices: int, rng: np.random.Generator) -> dict[str, Any]:
    """The figures of one run at `speed` images/s."""
    speed *= float(np.exp(rng.normal(0, 0.01)))
    saved = 0.6 if half else 1.0
    parts = {
        "parameters": 233.0,
        "gradients": 233.0,
        "optimizer": 466.0,
        "activations": 410.0 * saved / devices,
        "input": 37.7 * saved,
        "workspace": 120.0 * saved,
        "unattributed": 14.0,
    }
    step = 64_000 / speed
    return {
        "images_per_s": speed,
        "train_time_s": EPOCHS * 50_000 / speed,
        "peak_allocated_mib": [sum(parts.values())] * devices,
        **{f"memory_{name}_mib": [value] * devices for name, value in parts.items()},
        "memory_probe_peak_mib": [sum(parts.values()) + 9] * devices,
        "step_ms_p50": step,
        "step_ms_p95": step * 1.15,
        "step_ms_p99": step * 1.6,
        "energy_j": 400 * EPOCHS * 50_000 / speed,
        "data_wait_frac": 0.02,
        "share_compute": 0.44 if half else 0.58,
        "share_memory": 0.3 if half else 0.2,
        "share_communication": 0.12 if devices > 1 else 0.0,
        "share_gaps": (0.24 if half else 0.2) - (0.12 if devices > 1 else 0.0),
        "share_input": 0.02,
        "diagnosis": "mixed" if half else "compute-bound",
        "diagnosis_evidence": "compute takes 44% of the time"
        if half
        else "compute takes 58% of the time",
        "test_loss": 0.7,
        "train_loss": 0.4,
    }


def epochs(seconds: float, best: float, until: int, rng: np.random.Generator) -> list[Any]:
    """`until` epochs of a run that would take `seconds` for all and end near `best`."""
    rows = []
    for epoch in range(1, until + 1):
        share = 1 - math.exp(-epoch / 3)
        rows.append(
            {
                "epoch": epoch,
                "train_loss": 2.3 - 1.9 * share + float(rng.normal(0, 0.02)),
                "test_accuracy": round(0.1 + (best - 0.1) * share + float(rng.normal(0, 0.004)), 4),
                "test_loss": 1.0,
                "lr": 1e-4,
                "train_time_s": seconds / EPOCHS,
                "images_per_s": 1.0,
            }
        )
    return rows


def add_epochs(run: Path, rows: list[Any]) -> None:
    """Put epochs into the record of a run."""
    found = record.read(run / "record.json")
    found.epochs = rows
    if found.metrics and rows:
        found.metrics["test_accuracy"] = rows[-1]["test_accuracy"]
    record.write(run / "record.json", found)


def matrix(root: Path, seeds: int = 3) -> Path:
    """The nine cells on a GPU: dp x scaler fails at epoch 5, ddp x scaler diverges in one seed,
    ddp x autocast is pending.
    """
    rng = np.random.default_rng(1)
    for seed in range(seeds):
        for parallel in PARALLELS:
            for precision in PRECISIONS:
                status, until = record.COMPLETED, EPOCHS
                if (parallel, precision) == ("dp", "scaler"):
                    status, until = record.FAILED, 5
                elif (parallel, precision) == ("ddp", "autocast"):
                    status, until = record.PENDING, 0
                elif (parallel, precision, seed) == ("ddp", "scaler", 1):
                    status, until = record.DIVERGED, 8
                shared = 2 if parallel != "none" else 1
                speed = SPEED[precision] * SHARED[parallel]
                done = status == record.COMPLETED
                run = write_run(
                    root,
                    parallel,
                    precision,
                    seed,
                    status,
                    gpu=True,
                    settings={"epochs": EPOCHS, "data.name": "cifar10", "model.width": 1.0},
                    effective={"test_images": 10_000} if until else None,
                    metrics=metrics(speed, precision != "fp32", shared, rng) if done else None,
                    error=BOOM if status == record.FAILED else None,
                )
                add_epochs(run, epochs(EPOCHS * 50_000 / speed, 0.82, until, rng))
    return run.parent


def large(root: Path) -> Path:
    """25 cells whose names are long, two seeds, some not completed."""
    rng = np.random.default_rng(2)
    for seed in range(2):
        for place, (parallel, devices) in enumerate(LONG_PARALLELS):
            for column, precision in enumerate(LONG_PRECISIONS):
                status = {7: record.OOM, 13: record.FAILED, 24: record.RUNNING}.get(
                    5 * place + column, record.COMPLETED
                )
                speed = 9000.0 * (1 + 0.6 * column) * (1 + 0.5 * place)
                shared = devices if isinstance(devices, int) else 1
                done = status == record.COMPLETED
                run = write_run(
                    root,
                    parallel,
                    precision,
                    seed,
                    status,
                    gpu=True,
                    sweep="a_sweep_with_a_rather_long_name_for_its_directory",
                    settings={"epochs": EPOCHS, "parallel.devices": devices},
                    effective={"world_size": shared, "replicas": 1},
                    metrics=metrics(speed, column > 0, shared, rng) if done else None,
                )
                until = EPOCHS if done else 3
                add_epochs(run, epochs(EPOCHS * 50_000 / speed, 0.8 + 0.003 * column, until, rng))
    return run.parent
