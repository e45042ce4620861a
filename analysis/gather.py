"""What the comparison needs of many records, with equal parts held once.

Most settings of the runs of a sweep are equal. Each section of a record becomes the number of
an equal one in a pool, so that it is looked at once and not once per run. Figures stay with
their run. Epochs are only counted.
"""

import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from amp_sweep import record
from analysis import cache
from analysis.values import clean

# A cache is written again when at least this share of its rows is new.
WORTH_WRITING_FRAC = 0.05

# What each run has of its own, before its figures.
HEAD = (
    "name",
    "status",
    "fingerprint",
    "schema_version",
    "epochs_done",
    "segments",
    "stitched",
    "started_at",
    "ended_at",
)
ERROR_FIELDS = ("type", "message", "rank", "exitcode")
# The parts that every record has; each section of its config is one more.
FIXED_PARTS = ("cell", "effective", "environment", "error", "notes", "overrides", "config")

Numbers = npt.NDArray[np.int64]


@dataclass
class Pool:
    """JSON values, each kept once under a number."""

    values: list[Any] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def numbers(self, values: Iterable[Any]) -> list[int]:
        """The number of each value; equal are those of equal type too: 1 is not 1.0, nor true."""
        known, kept = self._numbers, self.values
        found = []
        for value in values:
            number = known.setdefault(_form(value), len(kept))
            if number == len(kept):
                kept.append(value)
            found.append(number)
        return found


def _form(value: Any) -> bytes:
    """What is the same for equal values of equal types only."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:  # lone surrogates, numbers of many digits
        return json.dumps(value).encode()


@dataclass(slots=True)
class Run:
    """One record, with its sections as numbers in a pool."""

    path: str  # of the record
    stamp: cache.Stamp
    numbers: list[int]  # first that of [names of the parts, names of the figures], then the parts
    values: list[Any]  # as HEAD names them, then the figures

    @property
    def modified_s(self) -> float:
        """When the file was written, in seconds since 1970."""
        return self.stamp[0] / 1e9


@dataclass
class Gathered:
    """Runs in the order in which they were found, and the values that they refer to."""

    pool: Pool = field(default_factory=Pool)
    runs: list[Run] = field(default_factory=list)

    def head(self, name: str) -> list[Any]:
        """One of HEAD for each run."""
        place = HEAD.index(name)
        return [run.values[place] for run in self.runs]

    def parts(self) -> dict[str, Numbers]:
        """For each part the number of each run's value, -1 where it has no such part."""
        columns: dict[str, Numbers] = {}
        for (names, _), places in self._by_shape():
            numbers = np.array([self.runs[place].numbers for place in places], dtype=np.int64)
            for column, name in enumerate(names, start=1):
                here = columns.setdefault(name, np.full(len(self.runs), -1))
                here[places] = numbers[:, column]
        return columns

    def figures(self) -> dict[str, list[Any]]:
        """For each figure the value of each run, None where it has none."""
        columns: dict[str, list[Any]] = {}
        for (_, names), places in self._by_shape():
            rows = [self.runs[place].values for place in places]
            for column, name in enumerate(names, start=len(HEAD)):
                here = columns.setdefault(name, [None] * len(self.runs))
                for place, row in zip(places, rows, strict=True):
                    here[place] = row[column]
        return columns

    def _by_shape(self) -> Iterable[tuple[Any, list[int]]]:
        places: dict[int, list[int]] = {}
        for place, run in enumerate(self.runs):
            places.setdefault(run.numbers[0], []).append(place)
        return [(self.pool.values[shape], at) for shape, at in places.items()]


def gather(dirs: Sequence[Path], problems: list[str]) -> Gathered:
    """Every record of sweep directories or of single runs, each once, in the order given.

    What cannot be used is told in words under `problems`.
    """
    found = Gathered()
    seen: set[tuple[int, int]] = set()
    for directory in dirs:
        try:
            files = record.find_names(directory)
            if not files:
                problems.append(clean(_nothing_in(directory)))
        except OSError as error:
            problems.append(clean(f"{directory}: {error.strerror or error}"))
        else:
            found.runs += _read(directory, files, found.pool, seen, problems)
    return found


def _read(
    directory: Path,
    files: Sequence[str],
    pool: Pool,
    seen: set[tuple[int, int]],
    problems: list[str],
) -> list[Run]:
    """The runs of one directory, from its cache where that still holds."""
    caching = len(files) >= cache.MIN_RUNS
    stored = cache.read(directory) if caching else None
    if stored is not None and not _fits(stored):
        stored = None
    rows = {row[0]: row for row in stored.rows} if stored else {}
    shared = pool.numbers(stored.pool) if stored else []
    now_ns: int | None = None
    runs: list[Run] = []
    fresh: list[Run] = []
    for file in files:
        try:
            status = os.stat(file)  # noqa: PTH116 - thousands of them
            if (status.st_dev, status.st_ino) in seen:
                continue
            if not stat.S_ISREG(status.st_mode):  # a FIFO or a device may have no end
                problems.append(clean(f"{file}: not a regular file"))
                continue
            stamp = cache.stamp_of(status)
            row = rows.get(_name(file))
            if row is not None and row[1] == stamp:
                _, _, numbers, values = row
                runs.append(Run(file, stamp, [shared[n] for n in numbers], values))
            else:
                if caching and now_ns is None:  # before the first of them is read
                    now_ns = cache.clock_ns(directory)
                    caching = now_ns is not None
                runs.append(_compact(stamp, file, pool))
                fresh.append(runs[-1])
            seen.add((status.st_dev, status.st_ino))
        except record.RecordError as error:
            problems.append(clean(str(error)))
        except OSError as error:  # gone since it was found
            problems.append(clean(f"{file}: {error.strerror or error}"))
    if now_ns is not None:
        settled = [run for run in runs if cache.is_settled(run.stamp, now_ns)]
        new = sum(cache.is_settled(run.stamp, now_ns) for run in fresh)
        if new and new >= WORTH_WRITING_FRAC * len(files):
            cache.write(directory, cache.Stored(pool.values, [_row(run) for run in settled]))
    return runs


def _fits(stored: cache.Stored) -> bool:
    """Whether the rows of a cache are what `_compact` makes of records."""
    by_shape: dict[int, list[tuple[list[int], list[Any]]]] = {}
    for _, _, numbers, values in stored.rows:
        by_shape.setdefault(numbers[0], []).append((numbers, values))
    return all(
        _fit(stored.pool, stored.pool[shape], *map(list, zip(*rows, strict=True)))
        for shape, rows in by_shape.items()
    )


def _fit(pool: list[Any], shape: Any, numbers: list[list[int]], values: list[list[Any]]) -> bool:
    """The same for rows of one shape: [names of the parts, names of the figures]."""
    if not (
        type(shape) is list
        and list(map(type, shape)) == [list, list]
        and set(map(type, [*shape[0], *shape[1]])) == {str}
        and shape[0][: len(FIXED_PARTS)] == list(FIXED_PARTS)
    ):
        return False
    if set(map(len, numbers)) != {1 + len(shape[0])}:
        return False
    if set(map(len, values)) != {len(HEAD) + len(shape[1])}:
        return False
    for name, column in zip(shape[0], list(zip(*numbers, strict=True))[1:], strict=True):
        wanted = list if name in ("notes", "overrides") else dict
        if any(type(pool[number]) is not wanted for number in set(column)):
            return False
    kinds = (str, str, str, int, int, int, bool)  # as HEAD has them; the times may be anything
    columns = list(zip(*values, strict=True))
    if any(set(map(type, one)) != {kind} for one, kind in zip(columns, kinds, strict=False)):
        return False
    return set(columns[HEAD.index("status")]) <= set(record.STATUSES)


def _name(file: str) -> str:
    """Of the run's directory."""
    return file.rsplit("/", 2)[1]


def _row(run: Run) -> tuple[str, cache.Stamp, list[int], list[Any]]:
    return _name(run.path), run.stamp, run.numbers, run.values


def _compact(stamp: cache.Stamp, file: str, pool: Pool) -> Run:
    """A record without its epochs, with its sections in the pool."""
    found = record.read(Path(file))
    plain: dict[str, Any] = {}
    nested: dict[str, dict[str, Any]] = {}
    for name, value in found.config.items():
        if isinstance(value, dict):
            nested[f"config.{name}"] = value
        else:
            plain[name] = value
    error = found.error or {}
    shape = [[*FIXED_PARTS, *nested], list(found.metrics)]
    parts = (
        found.cell,
        found.effective,
        found.environment,
        {name: error.get(name) for name in ERROR_FIELDS},
        found.notes,
        found.overrides,
        plain,
    )
    first, last = (found.segments[0], found.segments[-1]) if found.segments else ({}, {})
    return Run(
        file,
        stamp,
        pool.numbers((shape, *parts, *nested.values())),
        [
            found.name,
            found.status,
            found.fingerprint,
            found.schema_version,
            len(found.epochs),
            len(found.segments),
            _stitched(found.segments),
            first.get("started_at"),
            last.get("ended_at"),
            *found.metrics.values(),
        ],
    )


def _stitched(segments: Sequence[dict[str, Any]]) -> bool:
    """Whether the figures are of several segments: a run that began anew, as one does that was
    killed before its first checkpoint, has them from its last segment alone.
    """
    if len(segments) < 2:
        return False
    return (segments[-1].get("from_epoch"), segments[-1].get("from_step")) != (0, 0)


def _nothing_in(directory: Path) -> str:
    """Why a directory gives no records, and where they may be."""
    if not directory.exists():
        return f"{directory}: no such directory"
    if not directory.is_dir():
        return f"{directory}: not a directory"
    own = directory / "record.json"
    if own.exists():
        return f"{own}: not a regular file"
    sweeps = sorted(child for child in directory.iterdir() if record.find(child))
    if not sweeps:
        return f"{directory}: no run records"
    listed = " ".join(str(sweep) for sweep in sweeps[:5]) + (" ..." if len(sweeps) > 5 else "")
    return f"{directory}: no run records, but it holds sweeps: {listed}"
