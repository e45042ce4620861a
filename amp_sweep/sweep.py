"""A sweep: check every cell, drop what is done, order, launch, watch, print, exit code."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from amp_sweep import config, forkserver, launch, legality, record
from amp_sweep.config import RunConfig
from amp_sweep.hardware import Hardware
from amp_sweep.lock import Lock, LockHeld, describe, is_alive, read_owner
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record
from amp_sweep.screen import Screen
from amp_sweep.worker import Preparation

OK, NOT_COMPLETED, STOPPED = 0, 1, 130


@dataclass(frozen=True)
class Cell:
    """One run that was asked for, with the overrides that asked for it."""

    config: RunConfig
    overrides: tuple[str, ...]

    @property
    def root(self) -> Path:
        """Its run directory."""
        return config.run_dir(self.config)

    @property
    def label(self) -> str:
        """Its name on the screen."""
        settings = self.config
        return f"{settings.parallel.name} x {settings.precision.name}, seed {settings.seed}"


def order(cells: Sequence[Cell]) -> list[Cell]:
    """Each cell once, seeds outermost: a slow hour then falls on all cells of one repeat."""
    unique = {cell.root: cell for cell in cells}
    return sorted(unique.values(), key=lambda cell: cell.config.seed)


# Takes what is left; an exit code when the sweep ends before its table.
Submit = Callable[[list[Cell], Screen, launch.Interrupts], int | None]


def run(
    cells: Sequence[Cell],
    submit: Submit | None = None,
    *,
    node: launch.Node = launch.ALONE,
    tables: bool = True,
) -> int:
    """Train what is left of `cells` here, or hand it to `submit`; the process's exit code."""
    asked = order(cells)
    screen = Screen(len(asked))
    if not _all_legal(asked, screen) or not _writable(asked, screen):
        return NOT_COMPLETED
    found = {cell.root: _look(cell, screen) for cell in asked}
    if None in found.values():
        return NOT_COMPLETED
    with launch.Interrupts() as interrupts, screen:
        done = [cell for cell in asked if _kept(cell)]
        left = [cell for cell in asked if cell not in done]
        if submit is None:
            code = _run_here(asked, done, left, screen, interrupts, node)
        else:
            _announce(done, screen)
            if asked[0].config.plan:
                _print_plan(asked, None, screen)
                return OK
            _write_pending(left)
            code = submit(left, screen, interrupts) if left else None
    if code is not None:
        return code
    if tables:
        print_tables(asked)
    return STOPPED if interrupts.count else _exit_code(asked, screen)


# ------------------------------------------------------------------ before the first cell


def _all_legal(cells: list[Cell], screen: Screen) -> bool:
    problems: dict[str, None] = {}
    for cell in cells:
        problems.update(dict.fromkeys(legality.check(cell.config, cell.overrides)))
    for problem in problems:
        screen.fail(problem)
    return not problems


def _writable(cells: list[Cell], screen: Screen) -> bool:
    if cells[0].config.plan:
        return True
    for folder in {cell.root.parent for cell in cells}:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            screen.fail(f"cannot write to {folder}: {error.strerror or error}")
            return False
    return True


def _look(cell: Cell, screen: Screen) -> Record | bool | None:
    """The record of the cell, False where there is none, None where it is another run's."""
    try:
        found = record.read_if_there(RunPaths(cell.root).record)
    except record.RecordError as error:
        screen.warn(f"{error}; this cell starts over")
        return False
    if found is None:
        return False
    if found.fingerprint != config.fingerprint(cell.config):
        screen.fail(f"{cell.root} belongs to another configuration; use another name=...")
        return None
    return found


def _read(cell: Cell) -> Record | None:
    try:
        return record.read_if_there(RunPaths(cell.root).record)
    except record.RecordError:
        return None


def _kept(cell: Cell) -> bool:
    """Whether the same command leaves this cell as it is."""
    found = _read(cell)
    return found is not None and found.status in record.KEPT and not cell.config.force


def _other_hardware(cell: Cell, hardware: Hardware) -> str | None:
    """The recorded device, when a finished cell ran on another kind than is here."""
    found = _read(cell)
    if found is None or not found.effective.get("device_names"):
        return None
    names = set(found.effective["device_names"])
    same = found.effective.get("device_type") == hardware.device_type
    if same and names <= set(hardware.device_names):
        return None
    return ", ".join(sorted(names))


def _announce(done: list[Cell], screen: Screen) -> None:
    for cell in done:
        found = _read(cell)
        status = found.status if found else record.COMPLETED
        screen.say(f"skipped, {status} before: {cell.label} ({cell.root.name})")


# ------------------------------------------------------------------ on this machine


def _run_here(
    asked: list[Cell],
    done: list[Cell],
    left: list[Cell],
    screen: Screen,
    interrupts: launch.Interrupts,
    node: launch.Node,
) -> int | None:
    """Train `left` on this machine; an exit code when the sweep ends before its table."""
    forkserver.start()
    devices = {cell.config.device for cell in asked}
    configs = [cell.config for cell in left]
    here = launch.prepare_here(configs, devices, screen.preparing, node.count)
    for problem in here.problems:
        screen.fail(problem)
    elsewhere = {
        cell.root.name: device
        for cell in done
        if (device := _other_hardware(cell, here.hardware[cell.config.device]))
    }
    for name, device in elsewhere.items():
        screen.fail(f"{name} was run on {device}; here use name=... or force=true")
    if here.problems or elsewhere:
        return NOT_COMPLETED
    if asked[0].config.plan:
        _print_plan(asked, dict(zip([c.root for c in left], here.invalid, strict=True)), screen)
        return OK
    _announce(done, screen)
    _warn_of_slow_bf16(here, screen)
    _write_pending(left)

    index = {cell.root: i for i, cell in enumerate(left)}
    held = _train_all(left, index, here, screen, interrupts, node)
    # Those that another sweep had may be free by now, or done.
    free = [cell for cell in held if not _kept(cell)]
    if free and not interrupts.count:
        for cell in _train_all(free, index, here, screen, interrupts, node):
            owner = read_owner(RunPaths(cell.root).lock)
            screen.warn(f"passed over: {cell.label} is being trained by {describe(owner or {})}")
    return None


def _train_all(
    cells: list[Cell],
    index: dict[Path, int],
    here: Preparation,
    screen: Screen,
    interrupts: launch.Interrupts,
    node: launch.Node,
) -> list[Cell]:
    """Train the cells one after another; those whose lock another process holds come back."""
    held = []
    for cell in cells:
        if interrupts.count:
            break
        if _kept(cell):
            screen.say(f"done meanwhile by another sweep: {cell.label}")
            continue
        i = index[cell.root]
        reason, plan, prepared = here.invalid[i], here.plans[i], here.prepared[i]
        if reason is not None or plan is None or prepared is None:
            result = _write_invalid(cell, reason or "it was not prepared", here)
            screen.cell_ends(cell.label, result)
        else:
            screen.cell_starts(cell.label, cell.config.epochs)
            try:
                result = launch.run_cell(
                    cell.config,
                    list(cell.overrides),
                    cell.root,
                    plan,
                    prepared,
                    here,
                    interrupts,
                    screen.cell_moves,
                    node,
                )
            except LockHeld:
                held.append(cell)
                continue
            except (OSError, record.RecordError) as error:
                # Nothing can be written about it: the screen and the exit code say it.
                screen.fail(f"{cell.label}: {error}")
                result = launch.record_for(cell.config, list(cell.overrides))
                result.status = record.FAILED
            screen.cell_ends(cell.label, result)
        if result.status != record.COMPLETED and cell.config.launch.on_error == "stop":
            screen.warn("stopped at the first cell that did not complete (launch.on_error=stop)")
            break
    return held


def _write_pending(cells: list[Cell]) -> None:
    """A record for every cell that has none yet, so that what is missing is known."""
    for cell in cells:
        paths = RunPaths(cell.root)
        cell.root.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(LockHeld), Lock(paths.lock):
            found = _read(cell)
            if found is None or found.status in record.STARTED_AGAIN:
                record.write(paths.record, launch.record_for(cell.config, list(cell.overrides)))


def _write_invalid(cell: Cell, reason: str, here: Preparation) -> Record:
    result = launch.record_for(cell.config, list(cell.overrides))
    result.status = record.INVALID
    result.environment = here.environments[cell.config.device]
    result.error = {
        "type": "Invalid",
        "message": reason,
        "traceback": None,
        "rank": None,
        "exitcode": None,
    }
    with contextlib.suppress(LockHeld), Lock(RunPaths(cell.root).lock):
        record.write(RunPaths(cell.root).record, result)
    return result


def _warn_of_slow_bf16(here: Preparation, screen: Screen) -> None:
    """Say before the start how slow mixed precision is on this CPU, and what to expect."""
    if here.expectation is not None:
        screen.warn(
            "this CPU has no native bfloat16: a step with autocast takes "
            f"{here.expectation.slowdown:.1f} times as long as in float32; expect about "
            f"{record.duration(here.expectation.total_s)} of training in all"
        )


# ------------------------------------------------------------------ afterwards


def _print_plan(cells: list[Cell], invalid: dict[Path, str | None] | None, screen: Screen) -> None:
    for cell in cells:
        found = _read(cell)
        reason = (invalid or {}).get(cell.root)
        if _kept(cell):
            what = f"skip: {found.status if found else ''} before"
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
        screen.say(f"{cell.label:32} {what}  ({cell.root})")


def print_tables(cells: Sequence[Cell]) -> None:
    """The comparison, by the same program that a person calls: `python -m analysis`."""
    folders = list(dict.fromkeys(str(cell.root.parent) for cell in cells))
    sys.stdout.flush()
    # -P: a folder named `analysis` in the working directory must not shadow ours.
    subprocess.run([sys.executable, "-P", "-m", "analysis", *folders], check=False)


def _exit_code(cells: list[Cell], screen: Screen) -> int:
    missing = [
        cell for cell in cells if (found := _read(cell)) is None or found.status != record.COMPLETED
    ]
    if missing:
        screen.warn(f"{len(missing)} of {len(cells)} cells did not complete")
    return NOT_COMPLETED if missing else OK
