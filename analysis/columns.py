"""The columns of the tidy table: their names, their types, and values that fit them.

A record's fields keep their own names; units are in the names.
"""

import dataclasses
import functools
import json
import math
from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

INT, FLOAT, TEXT, FLAG = "Int64", "Float64", "string", "boolean"

# No figure of a training is as large, in any unit; squares and sums of what is smaller are far
# from what a float can hold.
BEYOND = 1e30

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
        "peak_rss_above_mib": FLOAT,
        "memory_parameters_mib": FLOAT,
        "memory_gradients_mib": FLOAT,
        "memory_optimizer_mib": FLOAT,
        "memory_activations_mib": FLOAT,
        "memory_input_mib": FLOAT,
        "memory_workspace_mib": FLOAT,
        "memory_unattributed_mib": FLOAT,
        "memory_probe_peak_mib": FLOAT,
        "compile_s": FLOAT,
        "energy_j": FLOAT,
        "energy_j_per_image": FLOAT,
        "price_per_hour": FLOAT,
        "cost": FLOAT,
        "flops_per_image": FLOAT,
        "achieved_tflops": FLOAT,
        "ceiling_tflops": FLOAT,
        "ceiling_gb_per_s": FLOAT,
        "mfu": FLOAT,
        "share_input": FLOAT,
        "share_gaps": FLOAT,
        "share_compute": FLOAT,
        "share_memory": FLOAT,
        "share_communication": FLOAT,
        "communication_frac": FLOAT,
        "input_work_frac": FLOAT,
        "diagnosis": TEXT,
        "diagnosis_evidence": TEXT,
        "optimizer_steps": INT,
        "scaler_final_scale": FLOAT,
        "scaler_skipped_steps": INT,
        "underflow_frac": FLOAT,
        "underflow_frac_unscaled": FLOAT,
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
PER_DEVICE = frozenset(
    {
        "peak_allocated_mib",
        "peak_reserved_mib",
        "peak_rss_mib",
        "peak_rss_above_mib",
        "memory_parameters_mib",
        "memory_gradients_mib",
        "memory_optimizer_mib",
        "memory_activations_mib",
        "memory_input_mib",
        "memory_workspace_mib",
        "memory_unattributed_mib",
        "memory_probe_peak_mib",
    }
)

# (section, field) -> (column, type)
Columns = dict[tuple[str, str], tuple[str, str]]


def columns_of(found: Iterable[tuple[str, str, Any]]) -> Columns:
    """The columns for all known fields, then for those `found` (section, field, value).

    The type of a field that this version does not know follows from all of its values.
    """
    columns: Columns = {}
    taken = {*HEAD, *TAIL}
    unknown: dict[tuple[str, str], list[Any]] = {}
    for section, field, value in found:
        if field not in SECTIONS[section]:
            unknown.setdefault((section, field), []).append(value)
    types = {(s, f): kind for s, known in SECTIONS.items() for f, kind in known.items()}
    types |= {place: kind_of(values) for place, values in unknown.items()}
    for (section, field), kind in types.items():
        name = f"{section}_{field}" if field in taken else field
        taken.add(name)
        columns[section, field] = (name, kind)
    return columns


def kind_of(values: Iterable[Any]) -> str:
    """The narrowest column type that holds all these JSON values."""
    return _common({_kind(value) for value in values if value is not None})


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
    if kind == FLOAT and is_number(value) and abs(value) < BEYOND and math.isfinite(value):
        return float(value)
    whole = is_number(value) and abs(value) < 2**63 and value == int(value)
    if kind == INT and whole:
        return int(value)
    if kind == FLOAT and is_number(value):
        raise ValueError(f"{as_text(value)[:60]!r} is beyond {BEYOND:g}")
    wanted = {INT: "a whole number", FLOAT: "a number", FLAG: "true or false"}[kind]
    raise ValueError(f"{as_text(value)[:60]!r} is not {wanted}")


@dataclasses.dataclass
class Column:
    """One column of a fixed type."""

    values: ExtensionArray
    each: ExtensionArray | None = None  # as text, where there are lists of numbers
    # place -> why the value there is null
    misfits: dict[int, str] = dataclasses.field(default_factory=dict)


def column(values: Sequence[Any], kind: str) -> Column:
    """JSON values as a column of type `kind`; of a list of numbers the largest."""
    each = None
    if kind != TEXT and list in set(map(type, values)):
        each = pd.array(_lists_as_text(values), dtype="string")
        values = [_largest(value) for value in values]
    if kind == FLOAT and set(map(type, values)) <= {float, NoneType}:  # nearly always
        numbers = np.array(values, dtype=np.float64)
        missing = np.isnan(numbers)
        if (np.abs(numbers[~missing]) < BEYOND).all():
            return Column(pd.arrays.FloatingArray(numbers, missing), each)
    if kind == TEXT and set(map(type, values)) <= {str, NoneType}:
        texts = [None if value is None else clean(value) for value in values]
        return Column(pd.array(texts, dtype="string"))
    fitting: list[Any] = []
    misfits: dict[int, str] = {}
    for place, value in enumerate(values):
        try:
            fitting.append(typed(value, kind))
        except ValueError as error:
            fitting.append(None)
            misfits[place] = str(error)
    # Any: pandas' stubs know each type's name as a literal only.
    dtype: Any = kind
    return Column(pd.array(fitting, dtype=dtype), each, misfits)


def _lists_as_text(values: Sequence[Any]) -> list[str | None]:
    """The items of each list; None for what is no list, or empty."""
    return [
        None
        if not isinstance(value, list) or not value
        else repr(value[0])  # nearly always, and the same
        if len(value) == 1 and type(value[0]) is float
        else as_text(value)
        for value in values
    ]


def _largest(value: Any) -> Any:
    """The largest number of a list, None where it has none; what is no list as it is."""
    if not isinstance(value, list):
        return value
    if len(value) == 1 and type(value[0]) is float:  # nearly always
        return value[0]
    return max((item for item in value if is_number(item)), default=None)


def as_text(value: Any) -> str:
    """Any JSON value as one line of text; lists of plain values are joined."""
    if isinstance(value, str):
        return clean(value)
    if type(value) is int or type(value) is float:
        return repr(value)
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        return SEPARATOR.join(
            _item(item) if isinstance(item, str) else as_text(item) for item in value
        )
    return clean(json.dumps(value))


@functools.lru_cache(maxsize=10_000)
def _item(text: str) -> str:
    """A text that stands in a list: the same few stand in thousands of runs."""
    return clean(text).replace(SEPARATOR, " / ")


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
    if text.isprintable():  # no surrogate is
        return " ".join(text.split())
    text = text.encode("utf-8", "replace").decode("utf-8")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
