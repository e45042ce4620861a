"""The columns of the tidy table: their names, their types, and values that fit them.

A record's fields keep their own names; units are in the names.
"""

import json
import math
from collections.abc import Iterable
from typing import Any

INT, FLOAT, TEXT, FLAG = "Int64", "Float64", "string", "boolean"

# Between the items of a list that became text; never inside an item.
SEPARATOR = " | "

# The record's sections that become columns. Where two have a field of one name, the
# earlier section keeps it and the later one's column begins with its section.
SECTIONS: dict[str, dict[str, str]] = {
    "cell": {"model": TEXT, "data": TEXT, "parallel": TEXT, "precision": TEXT, "seed": INT},
    "metrics": {
        "test_accuracy": FLOAT,
        "best_test_accuracy": FLOAT,
        "test_loss": FLOAT,
        "train_loss": FLOAT,
        "train_time_s": FLOAT,
        "wall_time_s": FLOAT,
        "startup_s": FLOAT,
        "first_step_s": FLOAT,
        "images_per_s": FLOAT,
        "step_ms_p50": FLOAT,
        "step_ms_p95": FLOAT,
        "step_ms_p99": FLOAT,
        "data_wait_frac": FLOAT,
        "peak_allocated_mib": FLOAT,
        "peak_reserved_mib": FLOAT,
        "peak_rss_mib": FLOAT,
        "energy_j": FLOAT,
        "flops_per_image": FLOAT,
        "mfu": FLOAT,
        "scaler_final_scale": FLOAT,
        "scaler_skipped_steps": INT,
        "contended": FLAG,
    },
    "effective": {
        "parallel": TEXT,
        "device_type": TEXT,
        "device_names": TEXT,
        "world_size": INT,
        "replicas": INT,
        "autocast_dtype": TEXT,
        "observed_dtypes": TEXT,
        "scaler_enabled": FLAG,
        "tf32_matmul": FLAG,
        "tf32_cudnn": FLAG,
        "cudnn_benchmark": FLAG,
        "native_bf16": FLAG,
        "memory_format": TEXT,
        "compile": TEXT,
        "global_batch": INT,
        "per_device_batch": INT,
        "steps": INT,
        "train_images": INT,
        "test_images": INT,
        "data_digest": TEXT,
        "image_size": INT,
        "threads": INT,
        "data_placement": TEXT,
        "pipeline": TEXT,
    },
    "environment": {
        "python": TEXT,
        "torch": TEXT,
        "torchvision": TEXT,
        "cuda": TEXT,
        "driver": TEXT,
        "gpu": TEXT,
        "cpu": TEXT,
        "cores": INT,
        "hostname": TEXT,
        "git_commit": TEXT,
        "git_dirty": FLAG,
        "slurm_job_ids": TEXT,
    },
}

# What a run is, before its sections.
HEAD: dict[str, str] = {
    "name": TEXT,
    "status": TEXT,
    "fingerprint": TEXT,
    "run_dir": TEXT,
    "schema_version": INT,
}

# What follows them: how many devices (on a CPU: processes) shared a batch, the lengths of
# the record's lists, its error and its texts.
TAIL: dict[str, str] = {
    "devices": INT,
    "epochs_done": INT,
    "segments": INT,
    "started_at": TEXT,
    "ended_at": TEXT,
    "error_type": TEXT,
    "error_message": TEXT,
    "error_rank": INT,
    "error_exitcode": INT,
    "notes": TEXT,
    "overrides": TEXT,
}

# Lists with a number per device or rank: the column holds the largest, `<name>_each` all.
PER_DEVICE = frozenset({"peak_allocated_mib", "peak_reserved_mib", "peak_rss_mib"})

# (section, field) -> (column, type)
Columns = dict[tuple[str, str], tuple[str, str]]


def columns_of(found: Iterable[tuple[str, str, Any]]) -> Columns:
    """The columns for all known fields, then for those `found` (section, field, value).

    The type of a field that this version does not know follows from all of its values.
    """
    columns: Columns = {}
    taken = {*HEAD, *TAIL}
    unknown: dict[tuple[str, str], set[str]] = {}
    for section, field, value in found:
        if field not in SECTIONS[section]:
            kinds = unknown.setdefault((section, field), set())
            kinds.update(set() if value is None else {_kind(value)})
    types = {(s, f): kind for s, known in SECTIONS.items() for f, kind in known.items()}
    types |= {place: _common(kinds) for place, kinds in unknown.items()}
    for (section, field), kind in types.items():
        name = f"{section}_{field}" if field in taken else field
        taken.add(name)
        columns[section, field] = (name, kind)
    return columns


def _kind(value: Any) -> str:
    """The column type that fits one JSON value."""
    if isinstance(value, list) and value and all(is_number(item) for item in value):
        return _common({_kind(item) for item in value})
    if isinstance(value, bool):
        return FLAG
    if is_number(value):
        return INT if isinstance(value, int) else FLOAT
    return TEXT


def _common(kinds: set[str]) -> str:
    """The narrowest type that holds values of all these types."""
    if kinds == {INT, FLOAT}:
        return FLOAT
    return next(iter(kinds)) if len(kinds) == 1 else TEXT


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def typed(value: Any, kind: str) -> Any:
    """`value` as the column type `kind` holds it. Raises ValueError where it does not fit."""
    if value is None or value == []:
        return None
    if kind == TEXT:
        return as_text(value)
    if kind == FLAG and isinstance(value, bool):
        return value
    # The bound keeps whole numbers beyond what a float can hold out of float().
    if kind == FLOAT and is_number(value) and abs(value) < 1e300 and math.isfinite(value):
        return float(value)
    whole = is_number(value) and abs(value) < 2**63 and value == int(value)
    if kind == INT and whole:
        return int(value)
    wanted = {INT: "a whole number", FLOAT: "a number", FLAG: "true or false"}[kind]
    raise ValueError(f"{as_text(value)[:60]!r} is not {wanted}")


def as_text(value: Any) -> str:
    """Any JSON value as one line of text; lists of plain values are joined."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return SEPARATOR.join(as_text(item).replace(SEPARATOR, " / ") for item in value)
    return clean(json.dumps(value))


def items(text: str | None) -> list[str]:
    """The items of a list that became text."""
    return [item for item in (text or "").split(SEPARATOR) if item]


def runs(number: int) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} run" if number == 1 else f"{number} runs"


def clean(text: str) -> str:
    """One line of printable text that any file and terminal can hold.

    Records come from other machines: no control sequence of theirs reaches a terminal.
    """
    text = text.encode("utf-8", "replace").decode("utf-8")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
