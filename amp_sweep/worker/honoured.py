"""Was it what was asked for? What really ran against the request, field by field."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau

from amp_sweep.fast.kept_threads import KeptThreads
from amp_sweep.fast.master_weights import MasterAdamW
from amp_sweep.precision import Observed
from amp_sweep.worker.build import Cell
from amp_sweep.worker.compile_ahead import Compiled
from amp_sweep.worker.state import Progress

SCHEDULERS = {"plateau": ReduceLROnPlateau, "cosine": CosineAnnealingLR, "constant": LambdaLR}


def seen_by_rank(cell: Cell, observed: Observed, compiled: Compiled | None) -> dict[str, Any]:
    """What this rank's objects and its first step say about themselves; plain values."""
    grouped = dist.is_initialized()
    return {
        "parallel": _parallel(cell.trainer.loss),
        "world_size": dist.get_world_size() if grouped else 1,
        "backend": dist.get_backend() if grouped else None,
        "images": {device: list(shape) for device, (shape, _) in observed.images.items()},
        "channels_last": sorted({last for _, last in observed.images.values()}),
        "devices": sorted(kinds for kinds in observed.by_device),
        "compiled": compiled is not None,
        "all_uncompiled": compiled is not None and 0 < compiled.layers == compiled.uncompiled,
    }


def _parallel(wrapped: nn.Module) -> str:
    if isinstance(wrapped, DistributedDataParallel):
        return "ddp"
    return "dp" if isinstance(wrapped, DataParallel) else "none"


def differences(cell: Cell, progress: Progress, ranks: Sequence[dict[str, Any]]) -> list[str]:
    """Each difference between request and run, in words; declared exceptions are none.

    ranks: what `seen_by_rank` gave on each. The dtypes are checked after the first step already.
    """
    settings, plan = cell.config, cell.job.plan
    scaler = cell.trainer.scaler
    # dp with one replica is the plain module, which the record says.
    parallel = "none" if settings.parallel.name == "dp" and plan.replicas == 1 else (
        settings.parallel.name
    )  # fmt: skip
    images = [shape for rank in ranks for shape in rank["images"].values()]
    checks: list[tuple[str, Any, Any]] = [
        ("parallel", [parallel], sorted({rank["parallel"] for rank in ranks})),
        ("processes", [plan.world_size], sorted({rank["world_size"] for rank in ranks})),
        ("backend", [plan.backend], [*{rank["backend"] for rank in ranks}]),
        (
            "parallel.find_unused_parameters",
            settings.parallel.find_unused_parameters,
            getattr(cell.trainer.loss, "find_unused_parameters", False),
        ),
        ("replicas", plan.replicas, len(images)),
        ("images per step", plan.global_batch, sum(shape[0] for shape in images)),
        (
            "image size",
            [[settings.data.image_size] * 2],
            sorted({tuple(shape[2:]) for shape in images}),
        ),
        ("channels last", [[cell.channels_last]], [rank["channels_last"] for rank in ranks[:1]]),
        ("gradient scaler", settings.precision.scaler, scaler.is_enabled()),
        ("optimizer", settings.optimizer.name, _optimizer(cell.trainer.optimizer)),
        (
            "master weights",
            cell.speedups.master_weights and cell.autocast_dtype is not None,
            isinstance(cell.trainer.optimizer, MasterAdamW),
        ),
        ("kept threads", cell.speedups.keep_threads, isinstance(cell.trainer.loss, KeptThreads)),
        ("torch.compile", {cell.speedups.compile != "off"}, {rank["compiled"] for rank in ranks}),
        ("layers that torch.compile left as they are", "not all", _layers_left(ranks)),
        ("CUDA graph", cell.speedups.cuda_graph, cell.trainer.graph is not None),
        ("scheduler", SCHEDULERS[settings.scheduler.name], type(cell.scheduler)),
        ("epochs", settings.epochs, progress.epoch),
    ]  # fmt: skip
    if cell.device.type == "cuda":
        cuda = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        checks += [
            ("TF32 of matrix products and convolutions", (settings.precision.tf32,) * 2, cuda),
            (
                "cudnn benchmark",
                settings.parallel.name != "dp" or cell.speedups.keep_threads,
                torch.backends.cudnn.benchmark,
            ),
        ]
    if settings.data.placement != "auto":
        checks.append(("data.placement", settings.data.placement, cell.train.placement))
    if settings.data.decode == "device":
        checks.append(("data.decode", "decoder", cell.train.placement))
    if settings.device != "auto":
        checks.append(("device", settings.device, cell.device.type))
    return [
        f"{name}: asked for {_plain(asked)}, ran {_plain(ran)}"
        for name, asked, ran in checks
        if _plain(asked) != _plain(ran)
    ]


def _layers_left(ranks: Sequence[dict[str, Any]]) -> str:
    return "all" if any(rank["all_uncompiled"] for rank in ranks) else "not all"


def _optimizer(optimizer: torch.optim.Optimizer) -> str:
    """The update rule by its name in the configuration."""
    name = type(optimizer).__name__
    return "adamw" if isinstance(optimizer, MasterAdamW) else name.lower()


def _plain(value: Any) -> str:
    """A value as a person reads it; lists and tuples alike."""
    if isinstance(value, list | tuple | set):
        return ", ".join(_plain(item) for item in value)
    return value.__name__ if isinstance(value, type) else str(value)
