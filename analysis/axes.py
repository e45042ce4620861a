"""Columns of the tidy table by the names that people type, and filters on them."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import key
from analysis.values import clean

Row = dict[str, Any]

# The directory of a run's sweep, as an axis.
SWEEP = "sweep"

# An axis that stands for fields of the comparison key of another name.
STANDS_FOR = {
    "device_name": key.HARDWARE,
    "device_names": key.HARDWARE,
    "gpu": key.HARDWARE,
    "cpu": key.HARDWARE,
    "device": ("device", *key.HARDWARE),
    "torch": ("torch", "cuda"),
    "parallel": ("data.batch_mode",),
    SWEEP: key.HARDWARE,
}

# Other names of columns.
ALIASES = {"device_name": "device_names", SWEEP: "run_dir"}


class UnknownColumn(ValueError):
    """No column of this name, with those that are near."""


def column(frame: pd.DataFrame, name: str) -> str:
    """The frame's column for a name: itself, or the config field. Raises UnknownColumn."""
    for candidate in (ALIASES.get(name, name), f"config.{name}"):
        if candidate in frame.columns:
            return candidate
    columns = dict.fromkeys(str(c).removeprefix("config.") for c in frame.columns)
    near = [c for c in columns if name.lower() in c.lower()]
    near += [c for c in difflib.get_close_matches(name, columns, n=5) if c not in near]
    told = f"; near it: {', '.join(near[:8])}" if near else ""
    raise UnknownColumn(f"no column {name!r}{told}")


def explains(axis: str, field: str) -> bool:
    """Whether a field of the comparison key differs because of this axis: `model.width`
    does where `model` is swept."""
    return field == axis or field.startswith(f"{axis}.") or field in STANDS_FOR.get(axis, ())


def where(frame: pd.DataFrame, wanted: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """The rows whose columns have one of the values given, compared as text.

    Raises UnknownColumn, and ValueError where a value is found in no row.
    """
    for name, values in wanted.items():
        texts = frame[column(frame, name)].astype("string").fillna("null")
        there = set(texts)
        if unknown := [value for value in values if value not in there]:
            raise ValueError(
                f"no run has {name}={unknown[0]}; there are: {clean(', '.join(sorted(there)))}"
            )
        frame = frame[texts.isin(list(values))]
    return frame.reset_index(drop=True)
