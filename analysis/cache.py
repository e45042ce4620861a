"""What was read from the records of a large sweep, kept beside them for the next call.

The files stay the truth. An entry counts only for a file that has the name, size, inode and
both times (to the nanosecond) that it had when it was read, and only under the code that
wrote it. A cache that is damaged, foreign or cannot be written is as good as none.

A file system's times are coarse: a record that is written again within one tick may look the
same. So nothing is stored about a file that was changed less than SETTLED_NS before it was
read, by the clock of its own file system; any later change then gives it another time.
"""

import contextlib
import functools
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from amp_sweep import record

CACHE_NAME = ".analysis-cache"

# Fewer runs than these are read in some hundredths of a second.
MIN_RUNS = 200

# Longer than the coarsest tick (FAT: 2 s).
SETTLED_NS = 3 * 10**9

# (modified, changed, size, inode); times in nanoseconds since 1970.
Stamp = tuple[int, int, int, int]


@dataclass(frozen=True)
class Stored:
    """The content of a cache: JSON values, and rows that refer to them by number.

    A row is [run directory's name, stamp, numbers, values].
    """

    pool: list[Any]
    rows: list[tuple[str, Stamp, list[int], list[Any]]]


def stamp_of(status: os.stat_result) -> Stamp:
    """What tells whether a file is still the one that was read."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def is_settled(stamp: Stamp, now_ns: int) -> bool:
    """Whether any change after `now_ns` gives the file another stamp."""
    return now_ns - max(stamp[0], stamp[1]) >= SETTLED_NS


def clock_ns(sweep: Path) -> int | None:
    """The time now by the clock of the sweep's file system; None where nothing can be written."""
    try:
        with tempfile.TemporaryFile(dir=sweep) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


@functools.cache
def _version() -> str:
    """Names the code that reads records: another one's cache is not ours. Raises OSError."""
    sources = (Path(record.__file__), Path(__file__), Path(__file__).with_name("gather.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in sources)).hexdigest()


def read(sweep: Path) -> Stored | None:
    """The cache of a sweep; None where there is none that can be used.

    What its rows refer to is in the pool. That it is what a record holds, `gather` looks at.
    """
    try:
        content = record.read_regular(sweep / CACHE_NAME, max_bytes=None)
        head, _, body = content.partition(b"\n")
        if head.decode("ascii") != _head(body):
            return None
        values = record.parse(body)
        pool = values["pool"]
        rows = [(name, tuple(stamp), numbers, own) for name, stamp, numbers, own in values["rows"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    if type(pool) is not list or not all(_is_row(*row, len(pool)) for row in rows):
        return None
    return Stored(pool, rows)


def _is_row(name: Any, stamp: tuple[Any, ...], numbers: Any, own: Any, size: int) -> bool:
    """Whether this is a row whose numbers are places in a pool of `size` values."""
    return (
        type(name) is str
        and list(map(type, stamp)) == [int] * 4
        and type(numbers) is list
        and set(map(type, numbers)) == {int}
        and min(numbers) >= 0
        and max(numbers) < size
        and type(own) is list
    )


def _head(body: bytes) -> str:
    return f"amp_sweep {_version()} {hashlib.sha256(body).hexdigest()}"


def write(sweep: Path, stored: Stored) -> None:
    """Replace the cache of a sweep as a whole, without what no row refers to any more.

    Where that is not possible there is none; the next call reads the records.
    """
    used = sorted({number for _, _, numbers, _ in stored.rows for number in numbers})
    place = {number: index for index, number in enumerate(used)}
    values = {
        "pool": [stored.pool[number] for number in used],
        "rows": [
            [name, stamp, [place[number] for number in numbers], own]
            for name, stamp, numbers, own in stored.rows
        ],
    }
    body = _as_json(values)
    with contextlib.suppress(OSError):
        record.write_atomic(sweep / CACHE_NAME, f"{_head(body)}\n{body.decode()}")


def _as_json(values: Any) -> bytes:
    try:
        return orjson.dumps(values)
    except orjson.JSONEncodeError:  # lone surrogates, numbers of many digits
        return json.dumps(values).encode()
