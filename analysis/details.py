"""One run of `report.html` as plain data: everything that its record says."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from amp_sweep import record
from amp_sweep.record import Record, RecordError
from analysis.sheets import Entry, Sheet, in_words

Row = dict[str, Any]

MOST_EPOCHS = 200  # rows of a run's table; the last ones
FILES = ("config.yaml", "epochs.csv", "steps.csv", "train.log")


@dataclass(frozen=True)
class Section:
    """Names with values, in the details of a run."""

    title: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Run:
    """One run, to be opened."""

    id: str
    title: str
    state: str
    href: str  # of its record
    files: tuple[tuple[str, str], ...]  # name and address of what else lies beside it
    message: str  # why it is not completed
    traceback: str
    notes: tuple[str, ...]
    sections: tuple[Section, ...]
    epochs: Sheet | None


def link(target: Path, out: Path) -> str:
    """The address of a file relative to the folder `out`, fit for an attribute."""
    relative = os.path.relpath(target.resolve(), out.resolve())
    return quote(Path(relative).as_posix().encode("utf-8", "surrogateescape"))


def of_run(row: Row, id: str, out: Path) -> Run:
    """One run with everything that its record says."""
    folder = Path(row["run_dir"])
    title = f"{row['parallel']} x {row['precision']}, seed {in_words(row['seed'])}: {row['status']}"
    there = tuple((name, link(folder / name, out)) for name in FILES if (folder / name).is_file())
    state = "" if row["status"] == record.COMPLETED else row["status"]
    try:
        found = record.read(folder / "record.json")
    except RecordError as unreadable:
        missing = (Section("Not readable any more", (("record", str(unreadable)),)),)
        return Run(
            id, title, state, link(folder / "record.json", out), there, "", "", (), missing, None
        )
    error = found.error or {}
    message = [str(error[name]) for name in ("type", "message") if error.get(name)]
    return Run(
        id=id,
        title=title,
        state=state,
        href=link(folder / "record.json", out),
        files=there,
        message=": ".join(message),
        traceback=str(error.get("traceback") or ""),
        notes=tuple(map(in_words, found.notes)),
        sections=tuple(_sections(found)),
        epochs=_epochs(found, f"{id}-epochs"),
    )


def _sections(found: Record) -> Iterable[Section]:
    titles = {"metrics": "Figures", "effective": "What really ran", "environment": "Environment"}
    for name, title in titles.items():
        if pairs := tuple((key, in_words(value)) for key, value in getattr(found, name).items()):
            yield Section(title, pairs)
    asked = record.flatten(found.config)
    if found.overrides:
        yield Section(
            "Overrides", tuple((f"{n}", in_words(o)) for n, o in enumerate(found.overrides, 1))
        )
    if asked:
        yield Section("Settings", tuple((key, in_words(value)) for key, value in asked.items()))


def _epochs(found: Record, id: str) -> Sheet | None:
    """A row per epoch, the last ones where there are many."""
    if not found.epochs:
        return None
    names = tuple(dict.fromkeys(name for epoch in found.epochs for name in epoch))
    rows = tuple(
        tuple(Entry(in_words(epoch.get(name)), sort=_number(epoch.get(name))) for name in names)
        for epoch in found.epochs[-MOST_EPOCHS:]
    )
    left_out = len(found.epochs) - len(rows)
    notes = (f"{left_out} earlier epochs: see the record",) if left_out else ()
    return Sheet(id, "Epochs", names, rows, left=0, sortable=False, notes=notes)


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
