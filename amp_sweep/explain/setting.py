"""What was asked for, what ran, and where."""

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from amp_sweep import record
from amp_sweep.record import Record

# Settings of `memory` that say how the same training is made faster.
SPEEDUPS = ("compile", "cuda_graph", "space_to_depth", "master_weights",
            "keep_threads")  # fmt: skip


def asked(run: Record) -> list[tuple[str, Any]]:
    """The request."""
    flat = record.flatten(run.config)

    def of(name: str) -> Any:
        return flat.get(name)

    width = of("model.width")
    model = f"{of('model.name')}" + (f", width {width:g}" if width not in (None, 1.0) else "")
    lr = of("optimizer.lr")
    return [
        ("command", " ".join(run.overrides) or "no overrides"),
        ("model", model),
        ("data", f"{of('data.name')}, {of('data.image_size')} px, input: {_input(flat)}"),
        ("batch", f"{of('data.batch_size')} ({of('data.batch_mode')})"),
        ("epochs", of("epochs")),
        ("parallel", f"{of('parallel.name')}, devices {of('parallel.devices')}"),
        ("precision", _asked_precision(flat)),
        ("optimizer", f"{of('optimizer.name')}, lr {lr:g}" if lr is not None else None),
        ("scheduler", of("scheduler.name")),
        ("memory", _asked_memory(flat) or None),
    ]


def _input(flat: dict[str, Any]) -> str:
    decoded = ", JPEG decoded by the device" if flat.get("data.decode") == "device" else ""
    return f"{flat.get('data.pipeline')}{decoded}"


def _asked_memory(flat: dict[str, Any]) -> str:
    return ", ".join(
        f"{name}={value}"
        for name in SPEEDUPS
        if (value := flat.get(f"memory.{name}")) not in (None, False, "off")
    )


def _asked_precision(flat: dict[str, Any]) -> str:
    words = [str(flat.get("precision.name"))]
    if flat.get("precision.autocast"):
        words.append(f"autocast, dtype {flat.get('precision.dtype')}")
    if flat.get("precision.scaler"):
        words.append("gradient scaler")
    if flat.get("precision.tf32"):
        words.append("TF32")
    return ", ".join(words)


def ran(run: Record) -> list[tuple[str, Any]]:
    """What really ran."""
    ran = run.effective
    names = ran.get("device_names") or []
    devices = ", ".join(dict.fromkeys(str(name) for name in names))
    batch = f"{ran.get('global_batch')} a step, {ran.get('per_device_batch')} a device"
    speedups = [
        f"{name}={ran[name]}" for name in SPEEDUPS if ran.get(name) not in (None, False, "off")
    ]
    return [
        ("devices", f"{ran.get('replicas')} x {devices}" if devices else ran.get("device_type")),
        ("processes", ran.get("world_size")),
        ("backend", ran.get("backend")),
        ("batch", batch),
        ("steps", f"{ran.get('steps')} in all"),
        ("images", f"{ran.get('train_images')} to train, {ran.get('test_images')} to test"),
        ("input", _source(ran)),
        ("autocast", ran.get("autocast_dtype") or "off"),
        ("computed in", _layers(ran) or ", ".join(ran.get("observed_dtypes") or [])),
        ("gradient scaler", "on" if ran.get("scaler_enabled") else "off"),
        ("TF32", _tf32(ran)),
        ("cudnn benchmark", _switch(ran.get("cudnn_benchmark"))),
        ("memory format", ran.get("memory_format")),
        ("freed memory kept", _switch(ran.get("kept_memory"))),
        ("pages of 2 MiB", _switch(ran.get("huge_pages"))),
        ("speed-ups", ", ".join(speedups) or "none"),
        ("threads", ran.get("threads")),
    ]


def _switch(value: Any) -> str | None:
    return None if value is None else ("on" if value else "off")


def _source(ran: dict[str, Any]) -> str | None:
    placement = ran.get("data_placement")
    return f"{placement}, one kernel" if placement and ran.get("fused_input") else placement


def _tf32(ran: dict[str, Any]) -> str | None:
    matmul, convolutions = ran.get("tf32_matmul"), ran.get("tf32_cudnn")
    if matmul is None and convolutions is None:
        return None
    return f"matrix products {_switch(matmul)}, convolutions {_switch(convolutions)}"


def _layers(ran: dict[str, Any]) -> str:
    """Observed dtypes per kind of layer; replicas that agree are told once."""
    told: dict[str, list[str]] = {}
    for row in ran.get("observed_dtypes_by_layer") or []:
        kinds = [
            f"{kind} {'/'.join(names)}"
            for kind, names in row.items()
            if kind not in ("rank", "device")
        ]
        told.setdefault(", ".join(kinds), []).append(f"rank {row.get('rank')} {row.get('device')}")
    if len(told) == 1:
        (words, places), *_ = told.items()
        return words + (f" (alike on {len(places)} replicas)" if len(places) > 1 else "")
    return "; ".join(f"{' and '.join(places)}: {words}" for words, places in told.items())


def environment(run: Record) -> list[tuple[str, Any]]:
    """Machine, versions, commit."""
    found = run.environment
    commit = found.get("git_commit")
    changed = ", with uncommitted changes" if found.get("git_dirty") else ""
    versions = ", ".join(
        f"{name} {found[name]}"
        for name in ("python", "torch", "torchvision", "cuda", "driver")
        if found.get(name)
    )
    return [
        ("host", found.get("hostname")),
        ("GPU", found.get("gpu")),
        ("CPU", f"{found.get('cpu')}, {found.get('cores')} cores for this run"),
        ("versions", versions),
        ("commit", f"{commit}{changed}" if commit else None),
        ("SLURM jobs", ", ".join(map(str, found.get("slurm_job_ids") or []))),
    ]


def segments(run: Record) -> list[tuple[str, Any]]:
    """The parts of a run that was interrupted."""
    return [
        (
            str(segment.get("started_at")),
            f"epochs {segment.get('from_epoch')} to {segment.get('to_epoch')} on "
            f"{segment.get('hostname') or segment.get('device')}",
        )
        for segment in run.segments
    ]


def error(error: dict[str, Any]) -> Iterator[RenderableType]:
    """What ended the run, with its traceback."""
    rank = error.get("rank")
    where = f" (rank {rank})" if rank is not None else ""
    yield Text(f"{error.get('type')}{where}: {error.get('message')}", style="red")
    if error.get("traceback"):
        yield Text(str(error["traceback"]).rstrip(), style="dim")
