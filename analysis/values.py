"""Values of records as the tidy table holds them: of one type, or one line of printable text."""

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
