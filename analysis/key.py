"""The comparison key: what must be equal for two runs to stand in one table.

Every field of the run's identity except the compared axes (parallelism and precision),
what they determine, and the seed; plus the device, PyTorch and CUDA.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amp_sweep import record
from analysis.columns import items

COMPARED = ("parallel", "precision")

# The article loads its data differently for ddp; in its own experiment these two follow
# from the parallelism.
AS_WRITTEN = "article_as_written"
DETERMINED = ("data.shuffle", "data.workers")
BY_PARALLELISM = "by parallelism"

HARDWARE = ("device_type", "device_name", "torch", "cuda")

Row = dict[str, Any]
Key = dict[str, str | None]


def identity(row: Row) -> Key:
    """The requested settings of a run that change its result, from its `config.*` columns."""
    return record.identity(
        {
            name.removeprefix("config."): value
            for name, value in row.items()
            if name.startswith("config.")
        }
    )


def hardware(rows: Sequence[Row]) -> list[Key]:
    """Device, PyTorch and CUDA of each run.

    A run that has not got as far as its device (pending, invalid, failed early) is given
    those of its sweep, or of all runs where they agree, so that it stands beside them.
    """
    own = [_own_hardware(row) for row in rows]
    sweeps = [str(Path(row["run_dir"]).parent) for row in rows]
    known: dict[str, Counter[tuple[str | None, ...]]] = defaultdict(Counter)
    for sweep, found in zip(sweeps, own, strict=True):
        if found["device_type"] is not None:
            known[sweep][tuple(found.values())] += 1
    everywhere = {found for counter in known.values() for found in counter}
    for sweep, found in zip(sweeps, own, strict=True):
        if found["device_type"] is not None:
            continue
        if known[sweep]:
            likely = known[sweep].most_common(1)[0][0]
        elif len(everywhere) == 1:
            likely = next(iter(everywhere))
        else:
            continue
        for name, value in zip(HARDWARE, likely, strict=True):
            found[name] = value if found[name] is None else found[name]
    return own


def _own_hardware(row: Row) -> Key:
    device = " + ".join(sorted(set(items(row["device_names"])))) or None
    if row["device_type"] == "cpu":  # PyTorch gives a CPU no name of its own
        device = row["cpu"] or device
    return {
        "device_type": row["device_type"],
        "device_name": device,
        "torch": row["torch"],
        "cuda": row["cuda"],
    }


def keys(rows: Sequence[Row]) -> list[Key]:
    """The comparison key of each run: field -> value as text."""
    found: list[Key] = []
    for row, where in zip(rows, hardware(rows), strict=True):
        settings = {
            name: value
            for name, value in identity(row).items()
            if name.split(".")[0] not in COMPARED and name != "seed"
        }
        if row.get("config.experiment") == AS_WRITTEN:
            settings.update(dict.fromkeys(DETERMINED, BY_PARALLELISM))
        found.append({**settings, **where})
    return found


def differences(one: Key, other: Key) -> dict[str, tuple[str | None, str | None]]:
    """The fields in which two keys differ, with both values."""
    return {
        name: (one.get(name), other.get(name))
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    }
