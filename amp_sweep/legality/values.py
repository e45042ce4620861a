"""What each setting may be, as data: choices and bounds, whatever else was asked for."""

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any

from omegaconf import MISSING

from amp_sweep.config import is_own_callable

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


def check(flat: dict[str, Any]) -> list[str]:
    """What is wrong with the single values of a flat config, each in one line."""
    return _name_problems(flat) + _value_problems(flat)


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
            meant = near(str(value), allowed)
            problems.append(f"{key}={value}: allowed are {', '.join(allowed)}{meant}")
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


def near(word: str, allowed: Sequence[str]) -> str:
    """The allowed word that was probably meant, as a question; "" where none is like it."""
    found = difflib.get_close_matches(word, allowed, n=1)
    return f" (did you mean {found[0]}?)" if found else ""
