"""Synthetic runs, through the same record module that real runs use: single ones, and whole
sweeps whose true figures are known.
"""

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from amp_sweep import config, record

PARALLELS = ("none", "dp", "ddp")
PRECISIONS = ("fp32", "autocast", "scaler")

SETTINGS: dict[str, Any] = {
    "model.name": "alexnet",
    "model.width": 0.25,
    "data.name": "digits",
    "optimizer.name": "adamw",
    "optimizer.lr": 0.001,
    "scheduler.name": "cosine",
    "track.name": "tensorboard",
}

# The article's settings, as DESIGN section 1 gives them.
ARTICLE: dict[str, Any] = {
    "experiment": "article",
    "epochs": 20,
    "model.width": 1.0,
    "model.outputs": 1000,
    "data.name": "cifar10",
    "data.image_size": 227,
    "data.normalize": False,
    "optimizer.lr": 1e-4,
    "scheduler.name": "plateau",
}

GPU: dict[str, Any] = {"device_type": "cuda", "device_names": ["NVIDIA H200"]}
CPU: dict[str, Any] = {"device_type": "cpu", "device_names": ["cpu"]}


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """A run's whole config from the fields that differ from the schema's defaults."""
    values = config.to_dict(config.RunConfig())
    for name, value in settings.items():
        *sections, field = name.split(".")
        place = values
        for section in sections:
            place = place[section]
        place[field] = value
    return config.to_dict(config.normalise(config.from_dict(values)))


def effective_of(parallel: str, status: str, gpu: bool) -> dict[str, Any]:
    """What a run says of its device; nothing before it has started."""
    if status in (record.PENDING, record.INVALID):
        return {}
    shared = 2 if parallel in ("dp", "ddp") else 1
    found = copy.deepcopy(GPU if gpu else CPU)
    found["device_names"] *= shared
    found["world_size"] = shared if parallel == "ddp" else 1
    found["replicas"] = shared if parallel == "dp" else 1
    found["global_batch"] = 64
    return found


def metrics_of(parallel: str, precision: str, seed: int, gpu: bool) -> dict[str, Any]:
    """Figures that differ between cells in a known way: dp takes 2, ddp half of the time."""
    seconds = {"none": 8.0, "dp": 16.0, "ddp": 4.0}.get(parallel, 8.0)
    seconds *= {"fp32": 1.0, "autocast": 0.5, "scaler": 0.75}.get(precision, 1.0)
    memory = "peak_allocated_mib" if gpu else "peak_rss_mib"
    return {
        "test_accuracy": 0.97 + 0.001 * seed,
        "best_test_accuracy": 0.98,
        "train_time_s": seconds + 0.1 * seed,
        "images_per_s": 16000.0 / seconds,
        "data_wait_frac": 0.03,
        "scaler_skipped_steps": 0,
        memory: [512.0, 640.5] if parallel in ("dp", "ddp") else [600.25],
    }


def write_run(
    root: Path,
    parallel: str = "none",
    precision: str = "fp32",
    seed: int = 0,
    status: str = record.COMPLETED,
    *,
    sweep: str = "matrix",
    gpu: bool = False,
    overrides: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
    effective: dict[str, Any] | None = None,
    metrics: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    notes: tuple[str, ...] = (),
    error: dict[str, Any] | None = None,
    segments: int | list[dict[str, Any]] = 1,
    ended_at: Any = "2026-01-01T00:00:00+00:00",
) -> Path:
    """Write one run into a sweep directory below `root`; returns the run's directory."""
    values = nested(
        {
            **SETTINGS,
            **(settings or {}),
            "name": sweep,
            "seed": seed,
            "parallel.name": parallel,
            "precision.name": precision,
        }
    )
    asked = config.from_dict(values)
    found = effective_of(parallel, status, gpu) | (effective or {})
    started = bool(found)
    torch = {"torch": "2.14.1", "cuda": "13.0" if gpu else None, "cpu": "Intel Xeon"}
    parts = [{}] * segments if isinstance(segments, int) else segments
    run = record.Record(
        name=sweep,
        fingerprint=config.fingerprint(asked),
        status=status,
        cell={
            "model": asked.model.name,
            "data": asked.data.name,
            "parallel": parallel,
            "precision": precision,
            "seed": seed,
        },
        overrides=[f"parallel={parallel}", f"precision={precision}", *overrides],
        config=values,
        effective=found,
        metrics=(metrics_of(parallel, precision, seed, gpu) if status == "completed" else {})
        | (metrics or {}),
        environment=({**torch, "git_commit": "abcdef0123456"} if started else {})
        | (environment or {}),
        segments=[{"ended_at": ended_at, **part} for part in parts] if started else [],
        notes=list(notes),
        error=error,
    )
    directory = root / sweep / config.cell_dir(asked)
    directory.mkdir(parents=True, exist_ok=True)
    record.write(directory / "record.json", run)
    return directory


@dataclass(frozen=True)
class Truth:
    """What a cell's figures vary around, and how much: `speed_sd` on the log scale."""

    images_per_s: float = 1000.0
    memory_mib: float = 1500.0
    accuracy: float = 0.90
    speed_sd: float = 0.01
    accuracy_sd: float = 0.002
    status: str = record.COMPLETED


BASE = Truth()
# Speed-ups of 1.8, 1.5, 1 (dp costs nothing), and ddp a tenth slower; mixed precision saves a
# fifth of the memory; the scaler of ddp loses two points of accuracy; dp x scaler fails.
TRUTHS: dict[tuple[str, str], Truth] = {
    ("none", "fp32"): BASE,
    ("none", "autocast"): replace(BASE, images_per_s=1800.0, memory_mib=1200.0),
    ("none", "scaler"): replace(BASE, images_per_s=1500.0, memory_mib=1200.0),
    ("dp", "fp32"): BASE,
    ("dp", "autocast"): replace(BASE, images_per_s=1800.0, memory_mib=1200.0),
    ("dp", "scaler"): replace(BASE, status=record.FAILED),
    ("ddp", "fp32"): replace(BASE, images_per_s=900.0),
    ("ddp", "autocast"): replace(BASE, images_per_s=1620.0, memory_mib=1200.0),
    ("ddp", "scaler"): replace(BASE, images_per_s=1350.0, memory_mib=1200.0, accuracy=0.88),
}

IMAGES = 50_000  # trained per run; 10,000 test images


def draw(truth: Truth, rng: np.random.Generator) -> dict[str, Any]:
    """The metrics of one run of a cell."""
    speed = truth.images_per_s * float(np.exp(rng.normal(0, truth.speed_sd)))
    correct = round(10_000 * (truth.accuracy + float(rng.normal(0, truth.accuracy_sd))))
    return {
        "test_accuracy": correct / 10_000,
        "train_time_s": IMAGES / speed,
        "images_per_s": speed,
        "peak_allocated_mib": [truth.memory_mib],
        "data_wait_frac": 0.02,
    }


def write_sweep(
    root: Path,
    truths: dict[tuple[str, str], Truth],
    seeds: int,
    *,
    random: int = 0,
    **common: Any,
) -> Path:
    """Write `seeds` runs of every cell; returns the sweep's directory. Further arguments are
    `write_run`'s, of every run.
    """
    rng = np.random.default_rng(random)
    effective = {"test_images": 10_000, "world_size": 1, "replicas": 1} | common.pop(
        "effective", {}
    )
    effective.setdefault("device_names", ["NVIDIA H200"])
    boom = {"type": "RuntimeError", "message": "boom", "rank": 0}
    for seed in range(seeds):
        for at, truth in truths.items():
            done = truth.status == record.COMPLETED
            run = write_run(
                root,
                *at,
                seed,
                truth.status,
                gpu=True,
                effective=effective,
                metrics=draw(truth, rng) if done else None,
                error=None if done else boom,
                **common,
            )
    return run.parent
