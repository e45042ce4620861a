"""A sweep on this machine: prepare once, train the cells one after another."""

from pathlib import Path

from amp_sweep import cells, forkserver, launch, record
from amp_sweep.cells import Cell
from amp_sweep.lock import Lock, LockHeld, describe, read_owner
from amp_sweep.messages import Hardware, Preparation
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record
from amp_sweep.screen import Screen


def run(
    asked: list[Cell],
    done: list[Cell],
    left: list[Cell],
    screen: Screen,
    interrupts: launch.Interrupts,
    node: launch.Node,
) -> int | None:
    """Train `left` on this machine; an exit code when the sweep ends before its table.

    STOPPED when it was interrupted before any cell started. Raises launch.NotPrepared.
    """
    try:
        forkserver.start(cell.config.model.name for cell in left)
    except OSError as error:
        raise launch.NotPrepared(
            f"the server that forks processes could not be started: {error}"
        ) from error
    devices = {cell.config.device for cell in asked}
    configs = [cell.config for cell in left]
    try:
        here = launch.prepare_here(
            configs, devices, screen.preparing, node.count, lambda: interrupts.count
        )
    except launch.Interrupted:
        screen.warn("interrupted before any cell started")
        return cells.STOPPED
    elsewhere = [
        f"{cell.root.name} was run on {device}; here use name=... or force=true"
        for cell in done
        if (device := _other_hardware(cell, here.hardware[cell.config.device]))
    ]
    if here.problems or elsewhere:
        raise launch.NotPrepared(*here.problems, *elsewhere)
    if asked[0].config.plan:
        cells.print_plan(
            asked, dict(zip([c.root for c in left], here.invalid, strict=True)), screen
        )
        return cells.OK
    cells.announce(done, screen)
    _warn_of_slow_bf16(here, screen)
    cells.write_pending(left)

    index = {cell.root: i for i, cell in enumerate(left)}
    held = _train_all(left, index, here, screen, interrupts, node)
    # Those that another sweep had may be free by now, or done.
    free = [cell for cell in held if not cells.is_kept(cell)]
    if free and not interrupts.count:
        for cell in _train_all(free, index, here, screen, interrupts, node):
            owner = read_owner(RunPaths(cell.root).lock)
            screen.warn(f"passed over: {cell.label} is being trained by {describe(owner or {})}")
    return None


def _train_all(
    left: list[Cell],
    index: dict[Path, int],
    here: Preparation,
    screen: Screen,
    interrupts: launch.Interrupts,
    node: launch.Node,
) -> list[Cell]:
    """Train the cells one after another; those whose lock another process holds come back."""
    held = []
    for cell in left:
        if interrupts.count:
            break
        if cells.is_kept(cell):
            screen.say(f"done meanwhile by another sweep: {cell.label}")
            continue
        i = index[cell.root]
        reason, plan, prepared = here.invalid[i], here.plans[i], here.prepared[i]
        try:
            if reason is not None or plan is None or prepared is None:
                result = _trained_before(cell) or cells.write_invalid(
                    cell, reason or "it was not prepared", here
                )
            else:
                screen.cell_starts(cell.label, cell.config.epochs)
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


def _trained_before(cell: Cell) -> Record | None:
    """The record of a cell that needs no training here, since that was over before; else None.

    Its launcher was killed after it, on a machine that can run the cell; or another sweep has
    completed it in this moment. Raises LockHeld and OSError.
    """
    paths = RunPaths(cell.root)
    if cell.config.force or not paths.record.exists():
        return None
    with Lock(paths.lock):
        found = cells.read(cell)
        if found is not None and found.status in record.KEPT:
            return found
        return None if found is None else launch.conclude_if_trained(paths, found)


def _warn_of_slow_bf16(here: Preparation, screen: Screen) -> None:
    """Say before the start how slow mixed precision is on this CPU, and what to expect."""
    if here.expectation is not None:
        screen.warn(
            "this CPU has no native bfloat16: a step with autocast takes "
            f"{here.expectation.slowdown:.1f} times as long as in float32; expect about "
            f"{record.duration(here.expectation.total_s)} of training in all"
        )


def _other_hardware(cell: Cell, hardware: Hardware) -> str | None:
    """The recorded device, when a finished cell ran on another kind than is here."""
    found = cells.read(cell)
    if found is None or not found.effective.get("device_names"):
        return None
    names = set(found.effective["device_names"])
    same = found.effective.get("device_type") == hardware.device_type
    if same and names <= set(hardware.device_names):
        return None
    return ", ".join(sorted(names))
