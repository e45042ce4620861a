"""Names for what stands in the tables: variants of an axis value, titles, settings."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from analysis import key
from analysis.values import runs

Row = dict[str, Any]

# What a run may be without: a title names it only where it is there.
MAY_LACK = (*key.HARDWARE, "data.root")

# More differing fields than these make no title.
TITLE_FIELDS = 4


def natural(text: str) -> tuple[Any, ...]:
    """A sort key that puts 64 before 128."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return tuple(float(part) if i % 2 else part for i, part in enumerate(parts))


def variants(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """Labels (parallelism, precision) of each run of a table.

    Runs that share a name but not its settings (`ddp` on 2 and on 4 devices) are no
    repeats of each other: what differs becomes part of the label.
    """
    sections: dict[str, list[str]] = {
        axis: sorted(n for n in rows[0] if n.startswith(f"config.{axis}."))  # as in every row
        for axis in key.COMPARED
    }
    sections["parallel"] += [f"config.{name}" for name in key.DETERMINED]
    parallel, precision = (_labels(rows, axis, sections[axis]) for axis in key.COMPARED)
    counts: dict[tuple[str, str], set[int]] = defaultdict(set)
    for *at, row in zip(parallel, precision, rows, strict=True):
        counts[at[0], at[1]] |= {row["devices"]} - {None}
    mixed = {label for (label, _), found in counts.items() if len(found) > 1}
    parallel = [
        f"{label} on {row['devices']}" if label in mixed and row["devices"] else label
        for label, row in zip(parallel, rows, strict=True)
    ]
    return list(zip(parallel, precision, strict=True))


def _labels(rows: Sequence[Row], axis: str, fields: Sequence[str]) -> list[str]:
    """The axis value of each run, with the fields in which its namesakes differ."""
    values: dict[Any, dict[str, set[Any]]] = defaultdict(lambda: defaultdict(set))
    for row in rows:
        for name in fields:
            values[row[axis]][name].add(row.get(name))
    labels = []
    for row in rows:
        differing = [name for name in fields if len(values[row[axis]][name]) > 1]
        told = " ".join(f"{name.rsplit('.', 1)[1]}={row.get(name) or 'null'}" for name in differing)
        labels.append(f"{row[axis] or '?'} ({told})" if told else row[axis] or "?")
    return labels


def told_apart(
    what: Sequence[dict[str, str]], axes: Sequence[dict[str, str]], keys: Sequence[key.Key]
) -> list[dict[str, str]]:
    """What tells the tables apart: for each the fields that differ, with its values.

    Model and data (`what`) where they suffice, else the swept axes, since those are the
    words a person typed, else the fields of the comparison key.
    """
    for candidates in (what, axes):
        found = _differing(candidates)
        if len({tuple(one.items()) for one in found}) == len(keys):
            return found
    return _differing([{name: value or "null" for name, value in one.items()} for one in keys])


def _differing(tables: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    names = dict.fromkeys(name for one in tables for name in one)
    names = {n: None for n in names if len({one.get(n) for one in tables}) > 1}
    return [{name: one.get(name, "null") for name in names} for one in tables]


def what(rows: Sequence[Row]) -> dict[str, str]:
    """Model and data of a table."""
    return {
        name: ", ".join(sorted({str(row[name] or "?") for row in rows}))
        for name in ("model", "data")
    }


def title(trained: dict[str, str], apart: dict[str, str]) -> str:
    """One line that names a table, from `what` and `told_apart`."""
    implied = {"device_type"} if "device_name" in apart else set()
    implied |= {name for name in MAY_LACK if apart.get(name) == "null"}
    told = [
        f"{name}={value}"
        for name, value in apart.items()
        if value not in trained.values() and name not in implied
    ]
    if len(told) > TITLE_FIELDS:
        told = [*told[:TITLE_FIELDS], f"and {len(told) - TITLE_FIELDS} more"]
    return ", ".join([f"{trained['model']} on {trained['data']}", *told])


def settings(found: key.Key) -> str:
    """The settings that matter most, of all runs of a table."""
    told = [
        (found.get("data.image_size"), "{} px"),
        (found.get("data.batch_size"), _batch(found)),
        (found.get("epochs"), "1 epoch" if found.get("epochs") == "1" else "{} epochs"),
        (found.get("optimizer.name"), "{}"),
        (found.get("optimizer.lr"), "lr {}"),
        (found.get("scheduler.name"), "{}"),
        (found.get("data.pipeline"), "{} input"),
        ("device" if found.get("data.decode") == "device" else None, "JPEG decoded by the {}"),
    ]
    return ", ".join(words.format(value) for value, words in told if value is not None)


def _batch(found: key.Key) -> str:
    return "batch {} per device" if found.get("data.batch_mode") == "per_device" else "batch {}"


def hardware(found: key.Key, rows: Sequence[Row]) -> str:
    """Where the runs of a table were made, and with which versions."""
    told = [
        (found.get("device_name"), "{}"),
        (found.get("torch"), "torch {}"),
        (found.get("cuda"), "CUDA {}"),
    ]
    words = [text.format(value) for value, text in told if value is not None]
    commits = {row["git_commit"][:7] for row in rows if row["git_commit"]}
    if len(commits) == 1:
        words.append(f"git {commits.pop()}")
    return ", ".join(words) or "no run has started"


_SWITCH: dict[Any, str] = {True: "on", False: "off"}


def differing(rows: Sequence[Row]) -> list[str]:
    """Warnings: what should be the same for all runs that one looks at, and is not."""
    where = key.hardware(rows)
    columns: dict[str, list[Any]] = {
        "device": [found["device_name"] for found in where],
        # Where it is the device, that line has told it.
        "CPU": [
            None if found["device_type"] == "cpu" else row["cpu"]
            for row, found in zip(rows, where, strict=True)
        ],
        "torch": [row["torch"] for row in rows],
        "torchvision": [row["torchvision"] for row in rows],
        "Python": [row["python"] for row in rows],
        "CUDA": [row["cuda"] for row in rows],
        "driver": [row["driver"] for row in rows],
        "number of cores": [row["cores"] for row in rows],
        # On a CPU a fifth of a step may hang on them; older records do not tell.
        "kept memory": [_SWITCH.get(row.get("kept_memory")) for row in rows],
        "use of 2 MiB pages": [_SWITCH.get(row.get("huge_pages")) for row in rows],
        "git commit": [(row["git_commit"] or "")[:7] or None for row in rows],
    }
    warnings = []
    for words, values in columns.items():
        counts = Counter(str(value) for value in values if value is not None)
        if len(counts) > 1:
            told = ", ".join(f"{value} ({runs(n)})" for value, n in counts.most_common())
            warnings.append(f"{words} differs between the runs: {told}")
    if dirty := sum(row["git_dirty"] is True for row in rows):
        known = sum(row["git_dirty"] is not None for row in rows)
        warnings.append(f"uncommitted changes in the code of {dirty} of {runs(known)}")
    return warnings
