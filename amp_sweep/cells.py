"""The cells of a sweep: which run each is, its record as the sweep sees it, what comes next."""

import contextlib
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_sweep import config, labels, launch, record, source
from amp_sweep.config import RunConfig
from amp_sweep.lock import Lock, LockHeld, describe, is_alive, read_owner
from amp_sweep.messages import Preparation
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record
from amp_sweep.screen import Screen

# A sweep's exit codes.
OK, NOT_COMPLETED, STOPPED = 0, 1, 130


@dataclass(frozen=True)
class Cell:
    """One run that was asked for, with the overrides that asked for it."""

    config: RunConfig
    overrides: tuple[str, ...]
    apart: str = ""  # other settings that tell it from the cells of its sweep, see `tell_apart`

    @property
    def root(self) -> Path:
        """Its run directory."""
        return config.run_dir(self.config)

    @property
    def label(self) -> str:
        """Its name on the screen."""
        settings = self.config
        name = f"{settings.parallel.name} x {settings.precision.name}"
        return ", ".join(filter(None, (name, self.apart, f"seed {settings.seed}")))


def order(cells: Sequence[Cell]) -> list[Cell]:
    """Each cell once, seeds outermost: a slow hour then falls on all cells of one repeat."""
    unique = {cell.root: cell for cell in cells}
    return sorted(unique.values(), key=lambda cell: cell.config.seed)


def tell_apart(cells: Sequence[Cell]) -> list[Cell]:
    """The same cells, whose labels name the other settings in which they differ."""
    apart = labels.told_apart([(cell.overrides, config.to_dict(cell.config)) for cell in cells])
    return [dataclasses.replace(cell, apart=one) for cell, one in zip(cells, apart, strict=True)]


def is_ours(cell: Cell, screen: Screen) -> bool:
    """Whether its directory is free or holds this very configuration; says what else it finds."""
    try:
        found = record.read_if_there(RunPaths(cell.root).record)
    except record.RecordError as error:
        screen.warn(f"{error}; this cell starts over")
        return True
    if found is None or found.fingerprint == config.fingerprint(cell.config):
        return True
    screen.fail(f"{cell.root} belongs to another configuration; use another name=...")
    return False


def read(cell: Cell) -> Record | None:
    """The record of the cell; None where there is none that can be read."""
    try:
        return record.read_if_there(RunPaths(cell.root).record)
    except record.RecordError:
        return None


def is_kept(cell: Cell) -> bool:
    """Whether the same command leaves this cell as it is."""
    found = read(cell)
    return found is not None and found.status in record.KEPT and not cell.config.force


def _too_late(cell: Cell, found: Record | None) -> list[str]:
    """Settings of `measure` that are given now and that a kept run was measured without."""
    had = found.config.get("measure") if found else None
    known = had if isinstance(had, dict) else {}
    given = {text.lstrip("+").partition("=")[0] for text in cell.overrides}
    return [
        f"measure.{name}={value}"
        for name, value in vars(cell.config.measure).items()
        if f"measure.{name}" in given and known.get(name) != value
    ]


def _changed_code(
    cell: Cell, found: Record | None, digests: dict[tuple[str, ...], str | None]
) -> tuple[str, ...]:
    """The person's own callables of a cell whose code is known not to be what its run had.

    digests: of the callables that were looked at before; a package's files are read once.
    """
    before = found.effective.get("code_digest") if found else None
    if before is None:
        return ()
    own = tuple(source.own_callables(cell.config))
    if own not in digests:
        digests[own] = source.code_digest(own)
    return own if digests[own] not in (None, before) else ()


def announce(done: list[Cell], screen: Screen) -> None:
    """Say which cells are left as they are, and what is asked for in vain."""
    digests: dict[tuple[str, ...], str | None] = {}
    for cell in done:
        found = read(cell)
        status = found.status if found else record.COMPLETED
        screen.say(f"skipped, {status} before: {cell.label} ({cell.root.name})")
        if ignored := _too_late(cell, found):
            screen.warn(
                f"{', '.join(ignored)}: not of what was trained before; force=true trains it again"
            )
        if changed := _changed_code(cell, found, digests):
            screen.warn(
                f"the code of {' and '.join(changed)} has changed since {cell.root.name} was "
                "trained; force=true trains it anew"
            )


def print_plan(cells: list[Cell], invalid: dict[Path, str | None] | None, screen: Screen) -> None:
    """Say what the same command would do with each cell; `invalid` is why one cannot run here."""
    digests: dict[tuple[str, ...], str | None] = {}
    width = max([32, *(len(cell.label) for cell in cells if cell.apart)])
    for cell in cells:
        found = read(cell)
        reason = (invalid or {}).get(cell.root)
        if is_kept(cell):
            what = f"skip: {found.status if found else ''} before"
            if changed := _changed_code(cell, found, digests):
                what += f"; the code of {' and '.join(changed)} has changed since"
        elif reason:
            what = f"not possible here: {reason}"
        elif found is not None and found.status in record.RESUMED_AGAIN:
            owner = read_owner(RunPaths(cell.root).lock)
            if owner and is_alive(RunPaths(cell.root).lock, owner):
                what = f"pass over: trained by {describe(owner)}"
            else:
                what = f"resume: {found.status} before"
        else:
            what = "run"
        screen.say(f"{cell.label:{width}} {what}  ({cell.root})")


def write_pending(cells: list[Cell]) -> None:
    """A record for every cell that has none yet, so that what is missing is known."""
    for cell in cells:
        paths = RunPaths(cell.root)
        cell.root.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(LockHeld), Lock(paths.lock):
            found = read(cell)
            if found is None or found.status in record.STARTED_AGAIN:
                record.write(paths.record, launch.record_for(cell.config, list(cell.overrides)))


def write_invalid(cell: Cell, reason: str, here: Preparation) -> Record:
    """The record of a cell that cannot be honoured on this machine, written and returned.

    One that another machine can resume stays as it is: only this command says why it did not.
    """
    result = launch.record_for(cell.config, list(cell.overrides))
    result.status = record.INVALID
    result.environment = here.environments[cell.config.device]
    result.error = record.error_of("Invalid", reason)
    paths = RunPaths(cell.root)
    with contextlib.suppress(LockHeld), Lock(paths.lock):
        there = read(cell)
        resumable = there is not None and there.status in record.RESUMED_AGAIN
        saved = paths.last_checkpoint.exists() or paths.previous_checkpoint.exists()
        if cell.config.force or not (resumable and saved):
            record.write(paths.record, result)
    return result
