"""Run records to one tidy frame, a row per run.

Column types are fixed, so that a null stays a null, an integer an integer, and a run
that failed a row like any other.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.extensions import ExtensionArray

from amp_sweep import record
from analysis import key
from analysis.columns import HEAD, PER_DEVICE, SECTIONS, TAIL, Columns, columns_of
from analysis.gather import FIXED_PARTS, Gathered, Numbers, Run, gather
from analysis.values import TEXT, as_text, clean, column, is_number, items
from analysis.values import runs as counted

# Overrides that say how a sweep is run and never what is measured.
NO_AXIS = frozenset({"name", "outputs", "force", "plan", "launch", "hydra"})

Row = dict[str, Any]

# A column's values, one per run, by its name; None where there is no such column.
Settings = Callable[[str], Sequence[str | None] | None]


def load(*dirs: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read the records of sweep directories, or of single run directories.

    Returns a row per run and, in words, what was passed over: files that are no usable
    record, values of a wrong type, and runs that a newer run of the same thing replaces.
    """
    frame, _, problems = load_with_files(*dirs)
    return frame, problems


def load_with_files(*dirs: Path) -> tuple[pd.DataFrame, list[Path], list[str]]:
    """As `load`, with the record file of each row between the two."""
    problems: list[str] = []
    found = gather(dirs, problems)
    frame, misfits = _frame(found)
    kept = _newest(found, frame, problems)
    if len(kept) < len(found.runs):
        found = replace(found, runs=[found.runs[place] for place in kept])
        frame, misfits = _frame(found)
    versions = Counter(frame["schema_version"])
    if len(versions) > 1:
        told = ", ".join(f"{version} ({counted(n)})" for version, n in sorted(versions.items()))
        misfits.append(f"records of different schema versions stand together: {told}")
    return frame, [Path(run.path) for run in found.runs], problems + misfits


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The frame's rows as plain values, with None for every null."""
    names = [str(name) for name in frame.columns]
    columns = [_plain(frame.iloc[:, place].array) for place in range(len(names))]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _plain(column: ExtensionArray) -> list[Any]:
    """A column's values, with None for null."""
    if not isinstance(column.dtype, pd.StringDtype):
        null: Any = None  # the stubs know no null that is None
        return column.to_numpy(dtype=object, na_value=null).tolist()
    # Few texts stand in many rows: each becomes one object.
    numbers, texts = column.factorize()
    known = np.array([*texts, None], dtype=object)  # -1, a null, is the last
    return list(known[numbers].tolist())


def swept_axes(overrides: Sequence[str | None], settings: Settings) -> dict[str, list[str | None]]:
    """Each swept axis with its value per run, from the `overrides` column.

    An axis is swept when its value differs between the runs. Where a run does not set it, the
    value is the one that the run had all the same: of `config.<axis>`, or of
    `config.<axis>.name` for a group; None where neither is there. `settings` gives such a
    column, a value per run, or None.
    """
    split = [items(text) for text in overrides]
    pairs: dict[str, tuple[str, str]] = {}
    for item in {item for found in split for item in found if "=" in item}:
        name, _, value = item.lstrip("+").partition("=")
        pairs[item] = (name.strip(), value.strip())
    parsed = [dict(pairs[item] for item in found if item in pairs) for found in split]
    names = dict.fromkeys(name for run in parsed for name in run)
    values = {name: _filled(name, [run.get(name) for run in parsed], settings) for name in names}
    return {
        name: column
        for name, column in values.items()
        if len(set(column)) > 1 and name.split(".")[0].split("/")[0] not in NO_AXIS
    }


def _filled(axis: str, typed: list[str | None], settings: Settings) -> list[str | None]:
    """What was typed per run, and the setting that a run had where nothing was; in the typed
    form (`1e-2`) where another run has typed the same setting.
    """
    if None not in typed:
        return typed
    had = settings(f"config.{axis}") or settings(f"config.{axis}.name")
    if had is None:
        return typed
    forms = {one: text for one, text in zip(had, typed, strict=True) if text is not None}
    return [
        text if text is not None else forms.get(one, one)
        for text, one in zip(typed, had, strict=True)
    ]


@dataclass(frozen=True)
class _Part:
    """A part of all records: each value that occurs, and which of them each run has."""

    values: list[Any]
    which: Numbers

    def fields(self) -> dict[str, list[Any]]:
        """The values of each field of values that are objects."""
        names = dict.fromkeys(name for value in self.values for name in value)
        return {name: [value.get(name) for value in self.values] for name in names}


class _Building:
    """The columns of a frame so far, and the values that did not fit theirs."""

    def __init__(self, found: Gathered) -> None:
        self._runs = found.runs
        self._misfits: list[tuple[int, str]] = []  # run, reason
        self.data: dict[str, ExtensionArray] = {}

    def add(
        self, name: str, values: Sequence[Any], kind: str, at: str, which: Numbers | None = None
    ) -> None:
        """Add a column; with `which` its values are those that occur, else one per run."""
        made = column(values, kind)
        for place, reason in made.misfits.items():
            runs = [place] if which is None else np.flatnonzero(which == place).tolist()
            self._misfits += [
                (run, f"{self._runs[run].path}: {at}: {reason}; taken as null") for run in runs
            ]
        each = made.each
        if each is None and at.rpartition(".")[2] in PER_DEVICE:
            each = column([None] * len(values), TEXT).values
        self.data[name] = made.values if which is None else made.values.take(which)
        if each is not None:
            self.data[f"{name}_each"] = each if which is None else each.take(which)

    def misfits(self) -> list[str]:
        """What did not fit, by run."""
        return [clean(text) for _, text in sorted(self._misfits, key=lambda item: item[0])]


def _frame(found: Gathered) -> tuple[pd.DataFrame, list[str]]:
    """The runs with fixed types: what a run is, its figures, swept axes, texts, config.

    Also, in words, the values that did not fit their column and are null.
    """
    parts = _parts(found)
    figures = found.figures()
    building = _Building(found)
    for name, kind in HEAD.items():
        if name == "run_dir":
            building.data[name] = pd.array(_run_dirs(found.runs), dtype="string")
        else:
            building.add(name, found.head(name), kind, name)
    fields = {name: parts[name].fields() for name in SECTIONS if name != "metrics"}
    for (section, field), (name, kind) in _columns(fields, figures).items():
        if section == "metrics":
            values = figures.get(field) or [None] * len(found.runs)
            building.add(name, values, kind, f"{section}.{field}")
        else:
            part = parts[section]
            values = fields[section].get(field) or [None] * len(part.values)
            building.add(name, values, kind, f"{section}.{field}", part.which)
    texts = _Building(found)
    _add_tail(texts, found, parts)
    _add_config(texts, parts)
    counts = pd.DataFrame({name: building.data[name] for name in ("world_size", "replicas")})
    devices = counts.max(axis="columns").astype("Int64").array
    known = {**building.data, "devices": devices, **texts.data}
    data: dict[str, ExtensionArray] = {}
    for name, array in known.items():
        data[name] = array
        if name == "seed":  # the axes stand beside the other things asked for
            data |= _axes(known)
    return pd.DataFrame(data), building.misfits() + texts.misfits()


def _run_dirs(runs: Sequence[Run]) -> list[str]:
    """The path of each run's directory, as it is; only what no text can hold becomes `?`."""
    paths = (run.path.rpartition("/")[0] for run in runs)
    return [path.encode("utf-8", "replace").decode("utf-8") for path in paths]


def _parts(found: Gathered) -> dict[str, _Part]:
    nothing = np.empty(0, dtype=np.int64)
    parts = {name: _Part([], nothing) for name in FIXED_PARTS}  # where there is no run
    for name, numbers in found.parts().items():
        distinct, which = np.unique(numbers, return_inverse=True)
        values = [found.pool.values[number] if number >= 0 else {} for number in distinct]
        parts[name] = _Part(values, which)
    return parts


def _columns(fields: dict[str, dict[str, list[Any]]], figures: dict[str, list[Any]]) -> Columns:
    """The columns of all sections, with those of fields that this version does not know."""
    every = {section: figures if section == "metrics" else fields[section] for section in SECTIONS}
    return columns_of(
        (section, field, value)
        for section, known in SECTIONS.items()
        for field, values in every[section].items()
        if field not in known
        for value in values
    )


def _add_tail(building: _Building, found: Gathered, parts: dict[str, _Part]) -> None:
    """What stands after the sections, as TAIL has it, without `devices`."""
    errors = parts["error"].fields()
    for name, kind in TAIL.items():
        if name.startswith("error_"):
            values = errors.get(name.removeprefix("error_"), [])
            building.add(name, values, kind, name, parts["error"].which)
        elif name in parts:
            building.add(name, parts[name].values, kind, name, parts[name].which)
        elif name != "devices":
            building.add(name, found.head(name), kind, name)


def _add_config(building: _Building, parts: dict[str, _Part]) -> None:
    """The settings asked for, as text, sorted by name."""
    columns: dict[str, tuple[list[Any], Numbers]] = {}
    for name, part in parts.items():
        if name != "config" and not name.startswith("config."):
            continue
        flat = _Part([record.flatten(value, f"{name}.") for value in part.values], part.which)
        columns |= {field: (values, part.which) for field, values in flat.fields().items()}
    for field, (values, which) in sorted(columns.items()):
        # What runs from before the field did stands beside what later ones say.
        before = record.ADDED_LATER.get(field.removeprefix("config."))
        given = [before if value is None else value for value in values]
        building.add(field, [None if v is None else as_text(v) for v in given], TEXT, field, which)


def _axes(known: dict[str, ExtensionArray]) -> dict[str, ExtensionArray]:
    """A column for each swept axis that no column tells yet."""
    axes: dict[str, ExtensionArray] = {}

    def settings(name: str) -> list[str | None] | None:
        return _plain(known[name]) if name in known else None

    for axis, values in swept_axes(_plain(known["overrides"]), settings).items():
        if axis in known:
            pairs = set(zip(values, _plain(known[axis]), strict=True))
            if all(value is None or value == as_text(plain) for value, plain in pairs):
                continue  # else: a group file of another name than what it holds
        name = f"overrides.{axis}" if axis in known else axis
        axes[name] = pd.array(values, dtype="string")
    return axes


def _newest(found: Gathered, frame: pd.DataFrame, problems: list[str]) -> list[int]:
    """The places of one run per thing asked for: its newest completed run, else its newest.

    The same settings on another device or under another PyTorch are another thing. Runs
    that are left out are counted under `problems`.
    """
    same: dict[Any, list[int]] = defaultdict(list)
    hardware = key.hardware(rows_of(frame[["run_dir", *key.HARDWARE_COLUMNS]]))
    for place, (fingerprint, where) in enumerate(
        zip(found.head("fingerprint"), hardware, strict=True)
    ):
        same[fingerprint, *where.values()].append(place)
    statuses, ended = found.head("status"), found.head("ended_at")
    kept = {
        max(
            (statuses[place] == record.COMPLETED, _ended_s(ended[place], found.runs[place]), place)
            for place in places
        )[2]
        for places in same.values()
    }
    if left_out := [run.path for place, run in enumerate(found.runs) if place not in kept]:
        more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        left = f"{counted(len(left_out))} {'is' if len(left_out) == 1 else 'are'} left out"
        told = ", ".join(clean(path.rpartition("/")[0]) for path in left_out[:3])
        problems.append(
            f"{left}, as the same settings have a completed or newer run on the "
            f"same hardware: {told}{more}"
        )
    return sorted(kept)


def _ended_s(ended: Any, run: Run) -> float:
    """When the run ended, in seconds since 1970; the file's time where it does not say."""
    try:
        if is_number(ended):
            return float(ended)
        return datetime.fromisoformat(str(ended)).timestamp()
    except (ValueError, OverflowError):
        return run.modified_s
