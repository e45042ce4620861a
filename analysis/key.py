"""The comparison key: what must be equal for two runs to stand in one table.

Every field of the run's identity except the compared axes (parallelism and precision),
what they determine, and the seed; plus the device, PyTorch and CUDA.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from amp_sweep import record
from analysis.values import items

COMPARED = ("parallel", "precision")

# The article loads its data differently for ddp; in its own experiment these two follow
# from the parallelism.
AS_WRITTEN = "article_as_written"
DETERMINED = ("data.shuffle", "data.workers")
BY_PARALLELISM = "by parallelism"

HARDWARE = ("device_type", "device_name", "torch", "cuda")
# The columns that tell them.
HARDWARE_COLUMNS = ("device_type", "device_names", "cpu", "torch", "cuda")

SEED = "config.seed"

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
    """Device, PyTorch and CUDA of each run; equal ones are one object, not to be changed.

    A run that has not got as far as its device (pending, invalid, failed early) is given
    those of its sweep, or of all runs where they agree, so that it stands beside them.
    """
    told = [(row["run_dir"].rpartition("/")[0], *map(row.get, HARDWARE_COLUMNS)) for row in rows]
    places = {place: _own_hardware(*place[1:]) for place in set(told)}
    known: dict[str, Counter[tuple[str | None, ...]]] = defaultdict(Counter)
    for place, n in Counter(told).items():
        if places[place]["device_type"] is not None:
            known[place[0]][tuple(places[place].values())] += n
    everywhere = {found for counter in known.values() for found in counter}
    for (sweep, *_), found in places.items():
        if found["device_type"] is not None:
            continue
        if sweep in known:
            likely = known[sweep].most_common(1)[0][0]
        elif len(everywhere) == 1:
            likely = next(iter(everywhere))
        else:
            continue
        for name, value in zip(HARDWARE, likely, strict=True):
            found[name] = value if found[name] is None else found[name]
    return [places[place] for place in told]


def _own_hardware(
    device_type: str | None,
    device_names: str | None,
    cpu: str | None,
    torch: str | None,
    cuda: str | None,
) -> Key:
    device = " + ".join(sorted(set(items(device_names)))) or None
    if device_type == "cpu":  # PyTorch gives a CPU no name of its own
        device = cpu or device
    return {"device_type": device_type, "device_name": device, "torch": torch, "cuda": cuda}


def keys(rows: Sequence[Row]) -> list[Key]:
    """The comparison key of each run of one frame: field -> value as text.

    Equal ones are mostly one object, not to be changed.
    """
    names = [
        name
        for name in (rows[0] if rows else ())
        if name.startswith("config.") and name.split(".")[1] not in COMPARED and name != SEED
    ]
    made: dict[tuple[str | None, ...], Key] = {}
    found: list[Key] = []
    for row, where in zip(rows, hardware(rows), strict=True):
        form = (*map(row.get, names), *where.values())
        if form not in made:
            settings = identity({name: row[name] for name in names})
            if row.get("config.experiment") == AS_WRITTEN:
                settings.update(dict.fromkeys(DETERMINED, BY_PARALLELISM))
            made[form] = {**settings, **where}
        found.append(made[form])
    return found


def differences(one: Key, other: Key) -> dict[str, tuple[str | None, str | None]]:
    """The fields in which two keys differ, with both values."""
    return {
        name: (one.get(name), other.get(name))
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    }
