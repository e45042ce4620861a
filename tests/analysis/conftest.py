"""A maker of synthetic runs, through the same record module that real runs use."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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

MakeRun = Callable[..., Path]


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


@pytest.fixture
def article() -> dict[str, Any]:
    """A run's settings that are the article's."""
    return dict(ARTICLE)


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """`make_run(parallel, precision, ...)` writes one run and returns its directory."""

    def make(
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
        segments: int = 1,
        ended_at: Any = "2026-01-01T00:00:00+00:00",
    ) -> Path:
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
            segments=[{"ended_at": ended_at}] * segments if started else [],
            notes=list(notes),
            error=error,
        )
        directory = tmp_path / sweep / config.cell_dir(asked)
        directory.mkdir(parents=True, exist_ok=True)
        record.write(directory / "record.json", run)
        return directory

    return make


@pytest.fixture
def make_matrix(make_run: MakeRun, tmp_path: Path) -> MakeRun:
    """`make_matrix(...)` writes the nine cells, `but={(parallel, precision): {...}}` some of
    them otherwise (None: not at all), and returns the sweep's directory.
    """

    def make(
        *, but: dict[tuple[str, str], dict[str, Any] | None] | None = None, **common: Any
    ) -> Path:
        for at in ((p, q) for p in PARALLELS for q in PRECISIONS):
            own = (but or {}).get(at, {})
            if own is not None:
                make_run(*at, **{**common, **own})
        return tmp_path / str(common.get("sweep", "matrix"))

    return make
