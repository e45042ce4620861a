"""Run records to one tidy table, a row per run.

Column types are fixed, so that a null stays a null, an integer an integer, and a run
that failed a row like any other.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from amp_sweep import record
from analysis import key
from analysis.columns import (
    HEAD,
    PER_DEVICE,
    SECTIONS,
    TAIL,
    TEXT,
    Columns,
    as_text,
    clean,
    columns_of,
    is_number,
    items,
    typed,
)
from analysis.columns import runs as counted

# Overrides that say how a sweep is run and never what is measured.
NO_AXIS = frozenset({"name", "outputs", "force", "plan", "launch", "hydra"})

Row = dict[str, Any]


def load(*dirs: Path) -> tuple[pd.DataFrame, list[str]]:
    """Read the records of sweep directories, or of single run directories.

    Returns a row per run and, in words, what was passed over: files that are no usable
    record, values of a wrong type, and runs that a newer run of the same thing replaces.
    """
    problems: list[str] = []
    runs: dict[Path, record.Record] = {}
    finished: list[float] = []
    for path in _record_files(dirs, problems):
        try:
            run = record.read(path)
            finished.append(_finished_at(run, path.stat().st_mtime))
            runs[path] = run
        except record.RecordError as error:
            problems.append(clean(str(error)))
        except OSError as error:  # gone since it was read
            problems.append(clean(f"{path}: {error.strerror or error}"))
    columns = columns_of(
        (section, field, value)
        for run in runs.values()
        for section in SECTIONS
        for field, value in getattr(run, section).items()
    )
    rows = [_row(path, run, columns, problems) for path, run in runs.items()]
    rows = _newest(rows, finished, problems)
    versions = Counter(row["schema_version"] for row in rows)
    if len(versions) > 1:
        found = ", ".join(f"{version} ({counted(n)})" for version, n in sorted(versions.items()))
        problems.append(f"records of different schema versions stand together: {found}")
    return _frame(rows, columns), problems


def rows_of(frame: pd.DataFrame) -> list[Row]:
    """The frame's rows as plain values, with None for every null."""
    return [
        {str(name): None if value is pd.NA else value for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def swept_axes(overrides: Sequence[str | None]) -> dict[str, list[str | None]]:
    """Each swept axis with its value per run, from the `overrides` column.

    An axis is swept when its value differs between the runs; where a run does not set
    it, the value is None.
    """
    parsed: list[dict[str, str]] = []
    for text in overrides:
        pairs = (item.lstrip("+").split("=", 1) for item in items(text) if "=" in item)
        parsed.append({name.strip(): value.strip() for name, value in pairs})
    names = dict.fromkeys(name for run in parsed for name in run)
    values = {name: [run.get(name) for run in parsed] for name in names}
    return {
        name: column
        for name, column in values.items()
        if len(set(column)) > 1 and name.split(".")[0].split("/")[0] not in NO_AXIS
    }


def _record_files(dirs: Iterable[Path], problems: list[str]) -> list[Path]:
    """Every record file once, in the order given; directories that hold none are problems."""
    files: dict[Path, Path] = {}
    for directory in dirs:
        try:
            found = record.find(directory)
            if not found:
                problems.append(clean(_nothing_in(directory)))
            for path in found:
                files.setdefault(path.resolve(), path)
        except OSError as error:
            problems.append(clean(f"{directory}: {error.strerror or error}"))
    return list(files.values())


def _nothing_in(directory: Path) -> str:
    """Why a directory gives no records, and where they may be."""
    if not directory.exists():
        return f"{directory}: no such directory"
    if not directory.is_dir():
        return f"{directory}: not a directory"
    sweeps = sorted(child for child in directory.iterdir() if record.find(child))
    if not sweeps:
        return f"{directory}: no run records"
    listed = " ".join(str(sweep) for sweep in sweeps[:5]) + (" ..." if len(sweeps) > 5 else "")
    return f"{directory}: no run records, but it holds sweeps: {listed}"


def _row(path: Path, run: record.Record, columns: Columns, problems: list[str]) -> Row:
    """One record as a flat row. Values that do not fit their column become None."""

    def fitting(value: Any, kind: str, at: str) -> Any:
        try:
            return typed(value, kind)
        except ValueError as error:
            problems.append(clean(f"{path}: {at}: {error}; taken as null"))
            return None

    row: Row = {
        "name": clean(run.name),
        "status": run.status,
        "fingerprint": clean(run.fingerprint),
        "run_dir": clean(str(path.parent)),
        "schema_version": run.schema_version,
    }
    for (section, field), (name, kind) in columns.items():
        value = getattr(run, section).get(field)
        if isinstance(value, list) and kind != TEXT:
            row[f"{name}_each"] = typed(value, TEXT)
            value = max((item for item in value if is_number(item)), default=None)
        row[name] = fitting(value, kind, f"{section}.{field}")
    error = run.error or {}
    first, last = (run.segments[0], run.segments[-1]) if run.segments else ({}, {})
    counts = [row[name] for name in ("world_size", "replicas") if row[name] is not None]
    tail = {
        "devices": max(counts, default=None),
        "epochs_done": len(run.epochs),
        "segments": len(run.segments),
        "started_at": first.get("started_at"),
        "ended_at": last.get("ended_at"),
        **{f"error_{name}": error.get(name) for name in ("type", "message", "rank", "exitcode")},
        "notes": run.notes,
        "overrides": run.overrides,
    }
    row |= {name: fitting(tail[name], kind, name) for name, kind in TAIL.items()}
    for field, value in record.flatten(run.config).items():
        row[f"config.{field}"] = None if value is None else as_text(value)
    return row


def _finished_at(run: record.Record, modified: float) -> float:
    """When the run ended, in seconds since 1970; the file's time where it does not say."""
    ended = run.segments[-1].get("ended_at") if run.segments else None
    try:
        if isinstance(ended, int | float):
            return float(ended)
        return datetime.fromisoformat(str(ended)).timestamp()
    except (ValueError, OverflowError):
        return modified


def _newest(rows: list[Row], finished: list[float], problems: list[str]) -> list[Row]:
    """One row per thing asked for: its newest completed run, else its newest run.

    The same settings on another device or under another PyTorch are another thing. Runs
    that are left out are counted under `problems`.
    """
    same: dict[Any, list[int]] = defaultdict(list)
    for index, hardware in enumerate(key.hardware(rows)):
        same[rows[index]["fingerprint"], tuple(hardware.values())].append(index)
    kept: set[int] = set()
    for indices in same.values():
        ranked = [(rows[i]["status"] == record.COMPLETED, finished[i], i) for i in indices]
        kept.add(max(ranked)[2])
    if left_out := [row["run_dir"] for index, row in enumerate(rows) if index not in kept]:
        more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        left = f"{counted(len(left_out))} {'is' if len(left_out) == 1 else 'are'} left out"
        problems.append(
            f"{left}, as the same settings have a completed or newer run on the "
            f"same hardware: {', '.join(left_out[:3])}{more}"
        )
    return [row for index, row in enumerate(rows) if index in kept]


def _frame(rows: list[Row], columns: Columns) -> pd.DataFrame:
    """The rows with fixed types: what a run is, its figures, swept axes, texts, config."""
    fixed = dict(HEAD)
    for (_, field), (name, kind) in columns.items():
        fixed[name] = kind
        if field in PER_DEVICE or any(f"{name}_each" in row for row in rows):
            fixed[f"{name}_each"] = TEXT
    axes: dict[str, list[str | None]] = {}
    for axis, values in swept_axes([row["overrides"] for row in rows]).items():
        if axis not in {**fixed, **TAIL}:
            axes[axis] = values
        elif any(
            value is not None and value != as_text(row[axis])
            for value, row in zip(values, rows, strict=True)
        ):  # a group file of another name than what it holds
            axes[f"overrides.{axis}"] = values
    config = sorted({name for row in rows for name in row if name.startswith("config.")})
    data: dict[str, Any] = {}
    # Any: pandas' stubs know each type's name as a literal only.
    types: dict[str, Any] = {**fixed, **TAIL, **dict.fromkeys(config, TEXT)}
    for name, kind in types.items():
        data[name] = pd.array([row.get(name) for row in rows], dtype=kind)
        if name == "seed":  # the axes stand beside the other things asked for
            data |= {axis: pd.array(values, dtype="string") for axis, values in axes.items()}
    return pd.DataFrame(data)
