"""What needs what and what excludes what, as data with the reason in words. No torch here.

`check` is about the request alone and runs before a sweep starts; `impossible_here`
is about the request on one machine and makes a cell `invalid` there.
"""

import dataclasses
import difflib
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import MISSING

from amp_sweep.config import RunConfig, is_own_callable

CHOICES: dict[str, tuple[str, ...]] = {
    "device": ("auto", "cuda", "mps", "cpu"),
    "data.batch_mode": ("global", "per_device"),
    "data.pipeline": ("resident", "loader", "pil"),
    "data.placement": ("auto", "device", "host"),
    "data.decode": ("host", "device"),
    "parallel.name": ("none", "dp", "ddp"),
    "parallel.backend": ("auto", "nccl", "gloo"),
    "precision.dtype": ("auto", "float16", "bfloat16"),
    "optimizer.name": ("adamw", "sgd"),
    "scheduler.name": ("plateau", "cosine", "constant"),
    "scheduler.metric": ("epoch_mean", "last_batch"),
    "memory.format": ("auto", "channels_last", "contiguous"),
    "memory.compile": ("off", "default", "max-autotune", "auto"),
    "track.name": ("tensorboard", "none"),
    "launch.on_error": ("continue", "stop"),
}

# These names may also be a person's own `package.module:callable`.
DATA_NAMES = ("digits", "cifar10", "imagefolder", "synthetic")

# Fields whose Union type admits one word beside a number.
WORD_OR_NUMBER: dict[str, str] = {"parallel.devices": "auto", "model.outputs": "auto"}
WORD_OR_FLAG: dict[str, str] = {
    "memory.cuda_graph": "auto",
    "memory.space_to_depth": "auto",
    "memory.master_weights": "auto",
    "memory.keep_threads": "auto",
}

AT_LEAST: dict[str, float] = {
    "seed": 0,
    "epochs": 1,
    "data.batch_size": 1,
    "data.eval_batch_size": 1,
    "data.image_size": 1,
    "data.workers": 0,
    "data.train_images": 1,
    "data.test_images": 1,
    "data.classes": 2,
    "data.source_size": 4,
    "parallel.devices": 1,
    "model.outputs": 1,
    "model.dropout": 0,
    "optimizer.weight_decay": 0,
    "optimizer.beta1": 0,
    "optimizer.beta2": 0,
    "optimizer.momentum": 0,
    "scheduler.patience": 0,
    "scheduler.min_lr": 0,
    "precision.growth_interval": 1,
    "track.every_steps": 1,
    "checkpoint.every_steps": 1,
    "checkpoint.min_interval_s": 0,
    "guard.nonfinite_steps": 1,
    "guard.min_scale": 0,
    "measure.price_per_hour": 0,
    "measure.probes_s": 0,
}

ABOVE: dict[str, float] = {
    "model.width": 0,
    "optimizer.lr": 0,
    "optimizer.eps": 0,
    "optimizer.clip_norm": 0,
    "scheduler.factor": 0,
    "precision.init_scale": 0,
    "launch.stall_timeout_s": 0,
}

BELOW: dict[str, float] = {
    "model.dropout": 1,
    "seed": 2**63,
    "optimizer.beta1": 1,
    "optimizer.beta2": 1,
    "scheduler.factor": 1,
}


@dataclass(frozen=True)
class Rule:
    """One illegal combination: `broken` finds it, `reason` says it (with the config's values)."""

    broken: Callable[[RunConfig], bool]
    reason: str


def _processes(config: RunConfig) -> int:
    """Devices that share a batch as far as the request alone tells; 1 where it does not."""
    devices = config.parallel.devices
    if config.parallel.name == "none":
        return 1
    if isinstance(devices, int):
        return devices
    return 2 if config.parallel.name == "ddp" and config.device == "cpu" else 1


RULES: tuple[Rule, ...] = (
    Rule(
        lambda c: c.precision.scaler and not c.precision.autocast,
        "precision.scaler=true needs precision.autocast=true: float32 gradients need no scale",
    ),
    Rule(
        lambda c: c.memory.master_weights is True and not c.precision.autocast,
        "memory.master_weights=true needs precision.autocast=true: in float32 the weights are "
        "their own masters",
    ),
    Rule(
        lambda c: c.memory.master_weights is True and c.optimizer.name != "adamw",
        "memory.master_weights=true works with optimizer=adamw only",
    ),
    Rule(
        lambda c: c.memory.master_weights is True and c.optimizer.clip_norm is not None,
        "memory.master_weights=true keeps gradients in half precision, which "
        "optimizer.clip_norm cannot unscale",
    ),
    Rule(
        lambda c: c.data.batch_mode == "global" and c.data.batch_size % _processes(c) != 0,
        "data.batch_size={c.data.batch_size} is the global batch and does not divide by "
        "{processes} devices (parallel={c.parallel.name}); choose a multiple of {processes}",
    ),
    Rule(
        lambda c: c.parallel.backend == "nccl" and c.device == "cpu",
        "parallel.backend=nccl needs CUDA devices; on a CPU it is gloo",
    ),
    Rule(
        lambda c: c.device == "mps" and c.parallel.name != "none",
        "parallel={c.parallel.name} does not work on MPS: it has one device",
    ),
    Rule(
        lambda c: c.data.name == "imagefolder" and c.data.root is None,
        "data=imagefolder needs data.root=FOLDER with train/ and test/ (or val/) in it",
    ),
    Rule(
        lambda c: (
            c.data.name != "synthetic"
            and (c.data.classes is not None or c.data.source_size is not None)
        ),
        "data.classes and data.source_size belong to data=synthetic",
    ),
    Rule(
        lambda c: c.data.pipeline == "resident" and c.data.workers > 0,
        "data.workers={c.data.workers} has nothing to do with data.pipeline=resident; "
        "use data.pipeline=loader",
    ),
    Rule(
        lambda c: c.data.placement != "auto" and c.data.pipeline != "resident",
        "data.placement={c.data.placement} works with data.pipeline=resident only",
    ),
    Rule(
        lambda c: (
            c.data.decode == "device"
            and (c.data.name != "imagefolder" or c.data.pipeline != "loader")
        ),
        "data.decode=device works with data=imagefolder data.pipeline=loader only: elsewhere the "
        "images are decoded before the training",
    ),
    Rule(
        lambda c: c.data.decode == "device" and c.device in ("cpu", "mps"),
        "data.decode=device needs a CUDA device; with device={c.device} it is data.decode=host",
    ),
    Rule(
        lambda c: c.optimizer.nesterov and c.optimizer.momentum == 0,
        "optimizer.nesterov=true needs optimizer.momentum above 0",
    ),
)

# Hydra's options after which arguments are no overrides, or those of another configuration.
NOT_OUR_OVERRIDES = frozenset(
    {"-sc", "--shell-completion", "-cn", "--config-name", "-cp", "--config-path"}
)

# One device cannot know another's answer, so these are asked where the cell runs.
FLOAT16_ON_CPU = (
    "float16 autocast on a CPU is emulated and unusably slow; use precision.dtype=bfloat16"
)


def _flat(config: RunConfig) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in vars(config).items():
        if hasattr(value, "__dataclass_fields__"):
            flat.update({f"{key}.{name}": item for name, item in vars(value).items()})
        else:
            flat[key] = value
    return flat


def _name_problems(flat: dict[str, Any]) -> list[str]:
    problems = []
    for section in ("model", "data", "parallel", "precision", "optimizer", "scheduler", "track"):
        if flat[f"{section}.name"] == MISSING:
            choices = CHOICES.get(f"{section}.name")
            hint = f": choose one of {', '.join(choices)}" if choices else ""
            problems.append(f"{section}=null is no choice{hint}")
    name = flat["data.name"]
    if name not in (*DATA_NAMES, MISSING) and not is_own_callable(name):
        problems.append(
            f"data.name={name}: allowed are {', '.join(DATA_NAMES)} or package.module:callable"
        )
    return problems


def _value_problems(flat: dict[str, Any]) -> list[str]:
    problems = []
    for key, allowed in CHOICES.items():
        value = flat[key]
        if value != MISSING and value not in allowed:
            near = _near(str(value), allowed)
            problems.append(f"{key}={value}: allowed are {', '.join(allowed)}{near}")
    for key, word in WORD_OR_NUMBER.items():
        if isinstance(flat[key], str) and flat[key] != word:
            problems.append(f"{key}={flat[key]}: a number or {word}")
    for key, word in WORD_OR_FLAG.items():
        if isinstance(flat[key], str) and flat[key] != word:
            problems.append(f"{key}={flat[key]}: true, false or {word}")
    bounds: tuple[tuple[dict[str, float], Callable[[Any, float], bool], str], ...] = (
        (AT_LEAST, lambda value, bound: value >= bound, "must be at least"),
        (ABOVE, lambda value, bound: value > bound, "must be above"),
        (BELOW, lambda value, bound: value < bound, "must be below"),
    )
    for table, holds, words in bounds:
        for key, bound in table.items():
            value = flat[key]
            if isinstance(value, float) and math.isinf(value):
                problems.append(f"{key}={value}: must be finite")
            elif isinstance(value, int | float) and not holds(value, bound):
                problems.append(f"{key}={value}: {words} {bound:g}")
    return problems


def _near(word: str, allowed: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, allowed, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def check_arguments(arguments: Sequence[str]) -> list[str]:
    """What is wrong with the keys of command-line overrides, before Hydra composes them.

    Hydra ends with a traceback for a group set to null, and does not say which keys there are.
    Additions (`+key`), deletions (`~key`), options and Hydra's own keys are left to it, and so is
    everything where an option says that the arguments are no overrides of our configuration.
    """
    if any(argument.split("=")[0] in NOT_OUR_OVERRIDES for argument in arguments):
        return []
    sections = {
        item.name: tuple(field.name for field in dataclasses.fields(item.type))
        for item in dataclasses.fields(RunConfig)
        if isinstance(item.type, type) and dataclasses.is_dataclass(item.type)
    }
    top = tuple(item.name for item in dataclasses.fields(RunConfig))
    problems = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key.replace(".", "").replace("_", "").isalnum():
            continue
        first, _, rest = key.partition(".")
        if first == "hydra":
            continue
        if first not in top:
            problems.append(
                f"{argument}: there is no key {first!r}{_near(first, top)}; "
                f"there are {', '.join(top)}"
            )
        elif rest and rest not in sections.get(first, ()):
            keys = sections.get(first, ())
            problems.append(
                f"{argument}: {first} has no key {rest!r}{_near(rest, keys)}; "
                f"it has {', '.join(keys) or 'none'}"
            )
        elif (
            not rest
            and (first in sections or first == "experiment")
            and set(value.split(",")) & {"null", ""}
        ):
            choices = CHOICES.get(f"{first}.name")
            hint = f"choose one of {', '.join(choices)}" if choices else "choose one by name"
            problems.append(f"{argument}: null is no choice; {hint}")
    return problems


def check(config: RunConfig, overrides: Sequence[str] = ()) -> list[str]:
    """Everything wrong with the request, each in one line; empty when it is legal."""
    flat = _flat(config)
    problems = _name_problems(flat) + _value_problems(flat)
    if any(item.lstrip("+").startswith("model.width=") for item in overrides) and (
        config.model.name != "alexnet"
    ):
        problems.append(f"model.width belongs to AlexNet; model.name={config.model.name} has none")
    if not config.name.strip() or config.name in (".", "..") or "/" in config.name:
        problems.append(f"name={config.name!r}: must be a folder name")
    if problems:
        return problems
    return [
        rule.reason.format(c=config, processes=_processes(config))
        for rule in RULES
        if rule.broken(config)
    ]


def impossible_here(
    config: RunConfig, *, device_type: str, visible_devices: int, native_bf16: bool | None
) -> str | None:
    """Why this cell cannot be honoured on a machine with these devices; None when it can."""
    autocast = config.precision.autocast
    devices = config.parallel.devices
    if config.device == "cuda" and device_type != "cuda":
        return "device=cuda, and no CUDA device is visible here"
    if config.device == "mps" and device_type != "mps":
        return "device=mps, and there is no MPS device here"
    if (
        isinstance(devices, int)
        and devices > visible_devices
        and (device_type == "cuda" or config.parallel.name == "dp")
    ):
        kind = "CUDA device" if device_type == "cuda" else device_type.upper()
        return f"parallel.devices={devices}, and {visible_devices} {kind}(s) visible here"
    if config.parallel.sync_batch_norm and device_type != "cuda":
        return "parallel.sync_batch_norm needs CUDA devices"
    if config.parallel.backend == "nccl" and device_type != "cuda":
        return "parallel.backend=nccl needs CUDA devices"
    if config.data.decode == "device" and device_type != "cuda":
        return "data.decode=device needs a CUDA device; use data.decode=host"
    if device_type == "cpu" and autocast and config.precision.dtype == "float16":
        return FLOAT16_ON_CPU
    if (
        device_type == "cuda"
        and autocast
        and config.precision.dtype == "bfloat16"
        and (native_bf16 is False)
    ):
        return "this GPU only emulates bfloat16; use precision=scaler (float16) here"
    if config.precision.tf32 and device_type != "cuda":
        return "TF32 is a format of NVIDIA GPUs"
    return _speedup_impossible(config, device_type)


def _speedup_impossible(config: RunConfig, device_type: str) -> str | None:
    dp = config.parallel.name == "dp"
    if config.memory.keep_threads is True and not (dp and device_type == "cuda"):
        return "memory.keep_threads=true is about DataParallel's threads on CUDA devices"
    if dp and config.memory.compile not in ("off", "auto"):
        return "torch.compile does not work in DataParallel's threads; use parallel=ddp"
    if dp and config.memory.master_weights is True:
        return "memory.master_weights does not work with DataParallel; use parallel=ddp"
    if config.memory.compile not in ("off", "auto") and device_type == "cpu" and not _compiler():
        return "torch.compile on a CPU needs a C++ compiler (g++)"
    if config.memory.cuda_graph is not True:
        return None
    if device_type != "cuda":
        return "memory.cuda_graph needs a CUDA device"
    if dp:
        return "DataParallel copies the network at every step, which no CUDA graph can hold"
    if config.parallel.name == "ddp" and config.parallel.backend == "gloo":
        return "gloo moves gradients through the host, which no CUDA graph can hold; use nccl"
    if config.data.pipeline != "resident" or config.data.placement == "host":
        return "memory.cuda_graph needs the images on the device: data.pipeline=resident"
    return None


def _compiler() -> bool:
    """Whether torch.compile finds a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "clang++"))
