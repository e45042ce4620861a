"""The run record: the only truth about a run. No torch here.

One JSON file a run, written atomically for every ending. Units are in the names
(`_s` seconds, `_ms` milliseconds, `_mib` 2**20 bytes, `_frac` a share of 1). A
figure that could not be had is null, with the reason in `notes`.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import math
import os
import stat
import tempfile
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from amp_sweep.paths import RECORD_NAME

SCHEMA_VERSION = 1

# A folder of a sweep that is no run: the tables that `analysis` makes of it.
TABLES_NAME = "tables"

PENDING = "pending"
RUNNING = "running"
COMPLETED = "completed"
INTERRUPTED = "interrupted"
TIMEOUT = "timeout"
FAILED = "failed"
OOM = "oom"
INVALID = "invalid"
DIVERGED = "diverged"

STATUSES = (
    PENDING,
    RUNNING,
    COMPLETED,
    INTERRUPTED,
    TIMEOUT,
    FAILED,
    OOM,
    INVALID,
    DIVERGED,
)

# What the same command does again.
RESUMED_AGAIN = frozenset({RUNNING, INTERRUPTED, TIMEOUT, FAILED})
STARTED_AGAIN = frozenset({PENDING, OOM, INVALID})
KEPT = frozenset({COMPLETED, DIVERGED})

# Sections of the config that change neither the weights nor the figures, and so are no part of
# a run's identity.
NOT_IDENTITY = frozenset(
    {"name", "experiment", "outputs", "force", "plan", "track", "checkpoint", "launch", "measure"}
)

# Fields that came after the first release, with the value that means what was done before they
# existed. They stay out of the identity while they have it, so that old runs keep their
# directories.
ADDED_LATER: dict[str, Any] = {
    "data.decode": "host",
    "parallel.find_unused_parameters": False,
    "memory.compile": "off",
    "memory.cuda_graph": False,
    "memory.space_to_depth": False,
    "memory.master_weights": False,
    "memory.keep_threads": False,
}

# Data sets whose content is defined by their name, not by where they lie.
CONTENT_BY_NAME = frozenset({"digits", "cifar10", "synthetic"})

# A record is some kilobytes; a file beyond this is not one of ours.
MAX_BYTES = 64 * 2**20

# Its sections are four levels deep; what is nested deeper than this would exhaust the stack of
# whoever walks it.
MAX_DEPTH = 100


class RecordError(Exception):
    """A record file that cannot be used, with its path and the reason in words."""


@dataclass
class Record:
    """One run, as DESIGN's record schema names it; `metrics` and `effective` stay open maps."""

    name: str
    fingerprint: str
    status: str
    cell: dict[str, Any]
    overrides: list[str]
    config: dict[str, Any]
    effective: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    segments: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: dict[str, Any] | None = None
    schema_version: int = SCHEMA_VERSION

    def note(self, text: str) -> None:
        """Add a remark once."""
        if text not in self.notes:
            self.notes.append(text)


def error_of(kind: str, message: str) -> dict[str, Any]:
    """A record's `error` that no rank reported."""
    return {"type": kind, "message": message, "traceback": None, "rank": None, "exitcode": None}


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config as `{"data.batch_size": 64, ...}`."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def identity(flat: dict[str, Any]) -> dict[str, Any]:
    """The fields of a flat config that make a run what it is."""
    return {
        name: value
        for name, value in flat.items()
        if name.split(".")[0] not in NOT_IDENTITY
        and not (name in ADDED_LATER and value == ADDED_LATER[name])
        and not (name == "data.root" and flat.get("data.name") in CONTENT_BY_NAME)
    }


def _finite(value: Any, at: str, lost: list[str]) -> Any:
    """`value` with non-finite floats as None; their places are added to `lost`."""
    if isinstance(value, float) and not math.isfinite(value):
        lost.append(f"{at} was {value}")
        return None
    if isinstance(value, dict):
        return {str(k): _finite(v, f"{at}.{k}" if at else str(k), lost) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, f"{at}[{i}]", lost) for i, item in enumerate(value)]
    return value


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text`: a reader sees the old or the new file, never a part.

    Raises OSError when the folder cannot be written.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would keep us until somebody writes


def read_regular(path: Path, max_bytes: int | None = MAX_BYTES) -> bytes:
    """The content of a regular file of at most `max_bytes` (None: of any size).

    Raises OSError for anything else, at once: nobody may ever write into a FIFO.
    """
    with open(path, "rb", opener=_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):  # a device may have no end
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if max_bytes is not None and status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"larger than {max_bytes // 2**20} MiB", str(path))
        return file.read()


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a small file beside a record; None where there is none to be read."""
    try:
        values = json.loads(read_regular(path))  # not strict: a loss there may be NaN
    except (OSError, ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None


def write(path: Path, record: Record) -> None:
    """Write the record as strict JSON. Raises OSError."""
    lost: list[str] = []
    values = _finite(dataclasses.asdict(record), "", lost)
    for text in lost:
        if text not in values["notes"]:
            values["notes"].append(text)
    ordered = {"schema_version": values.pop("schema_version"), **values}
    write_atomic(path, json.dumps(ordered, indent=1, allow_nan=False) + "\n")


def _finite_float(text: str) -> float:
    value = float(text)
    if -math.inf < value < math.inf:
        return value
    raise ValueError(f"{text} is beyond a float")


def _reject_constant(text: str) -> Any:
    raise ValueError(f"{text} is not valid JSON")


_DECODER = json.JSONDecoder(parse_float=_finite_float, parse_constant=_reject_constant)


def parse(content: bytes) -> Any:
    """A strict JSON value: no NaN, nothing beyond a float. Raises ValueError, RecursionError.

    A whole number of more than 64 bits may become a float.
    """
    try:
        return orjson.loads(content)  # a fifth of the time that json takes
    except orjson.JSONDecodeError:
        # json takes lone surrogates, which it also writes, and gives plainer reasons.
        return _DECODER.decode(content.decode("utf-8"))


@functools.cache
def _field_types() -> dict[str, tuple[tuple[type, ...], bool]]:
    """Each field of a record: the types that it may have, and whether it must be there."""
    hints = typing.get_type_hints(Record)
    found: dict[str, tuple[tuple[type, ...], bool]] = {}
    for item in dataclasses.fields(Record):
        hint = hints[item.name]
        kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        required = (
            item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        )
        found[item.name] = tuple(typing.get_origin(kind) or kind for kind in kinds), required
    return found


def _check_types(values: dict[str, Any], path: Path) -> None:
    for name, (allowed, required) in _field_types().items():
        if name not in values:
            if required:
                raise RecordError(f"{path}: no field {name!r}")
            continue
        value = values[name]
        if not isinstance(value, allowed) or isinstance(value, bool):
            raise RecordError(f"{path}: field {name!r} has type {type(value).__name__}")
    for listed in ("epochs", "segments"):
        if not set(map(type, values.get(listed, ()))) <= {dict}:
            raise RecordError(f"{path}: {listed!r} must hold objects")


def _is_deep(values: Any) -> bool:
    """Whether JSON values are nested more than MAX_DEPTH deep; without recursion."""
    layer = [values]
    for _ in range(MAX_DEPTH):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not layer:
            return False
    return True


def read(path: Path) -> Record:
    """Read a record. Raises RecordError with path and reason; never anything else.

    Fields that this version does not know are ignored; a newer schema version is refused.
    """
    try:
        content = read_regular(path)
        values = parse(content)
    except OSError as error:
        raise RecordError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not a record ({error})") from error
    if not isinstance(values, dict):
        raise RecordError(f"{path}: not a record (no JSON object)")
    # Few brackets need no second look: each level has one.
    if content.count(b"{") + content.count(b"[") > MAX_DEPTH and _is_deep(values):
        raise RecordError(f"{path}: not a record (nested more than {MAX_DEPTH} deep)")
    version = values.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise RecordError(f"{path}: no schema_version")
    if version > SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema version {version}, this program reads up to {SCHEMA_VERSION}"
        )
    _check_types(values, path)
    if values["status"] not in STATUSES:
        raise RecordError(f"{path}: unknown status {values['status']!r}")
    known = _field_types()
    return Record(**{key: value for key, value in values.items() if key in known})


def read_if_there(path: Path) -> Record | None:
    """The record, or None where there is no file. Raises RecordError for an unusable one."""
    try:
        return read(path)
    except RecordError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def find(sweep: Path) -> list[Path]:
    """Record files of a sweep directory, or of a single run directory, sorted by path."""
    return [Path(file) for file in find_names(sweep)]


def find_names(sweep: Path) -> list[str]:
    """As `find`, as text: of thousands of files that is half of the time."""
    folder = os.fspath(sweep)
    if (sweep / RECORD_NAME).is_file():
        return [f"{folder}/{RECORD_NAME}"]
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    files = (f"{folder}/{name}/{RECORD_NAME}" for name in names)
    return [file for file in files if os.path.exists(file)]  # noqa: PTH110


def duration(seconds: float) -> str:
    """Seconds as a person says them: `0.42 s`, `6.2 s`, `1 m 05 s`, `2 h 03 m 04 s`."""
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} m {left:02d} s" if hours else f"{minutes} m {left:02d} s"
