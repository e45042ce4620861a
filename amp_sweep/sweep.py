"""A sweep: check every cell, drop what is done, order, run here or submit, print, exit code."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence

from amp_sweep import launch, legality, local, record
from amp_sweep.cells import (
    NOT_COMPLETED,
    OK,
    STOPPED,
    Cell,
    announce,
    is_kept,
    is_ours,
    order,
    print_plan,
    read,
    write_pending,
)
from amp_sweep.screen import Screen

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
    strangers = [cell for cell in asked if not is_ours(cell, screen)]
    if strangers:
        return NOT_COMPLETED
    with launch.Interrupts() as interrupts, screen:
        done = [cell for cell in asked if is_kept(cell)]
        left = [cell for cell in asked if cell not in done]
        if submit is None:
            code = local.run(asked, done, left, screen, interrupts, node)
        else:
            announce(done, screen)
            if asked[0].config.plan:
                print_plan(asked, None, screen)
                return OK
            write_pending(left)
            code = submit(left, screen, interrupts) if left else None
    if code is not None:
        return code
    if tables:
        print_tables(asked)
    return STOPPED if interrupts.count else _exit_code(asked, screen)


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
            # A name of its own: other cells of the sweep may begin in this moment, as jobs.
            tempfile.NamedTemporaryFile(prefix=".writable-", dir=folder).close()
        except OSError as error:
            screen.fail(f"cannot write to {folder}: {error.strerror or error}")
            return False
    return True


def print_tables(cells: Sequence[Cell]) -> None:
    """The comparison, by the same program that a person calls: `python -m analysis`."""
    folders = list(dict.fromkeys(str(cell.root.parent) for cell in cells))
    sys.stdout.flush()
    # -P: a folder named `analysis` in the working directory must not shadow ours.
    command = [sys.executable, "-P", "-m", "analysis", "--no-pictures", *folders]
    subprocess.run(command, check=False)


def _exit_code(cells: list[Cell], screen: Screen) -> int:
    missing = [
        cell for cell in cells if (found := read(cell)) is None or found.status != record.COMPLETED
    ]
    if missing:
        screen.warn(f"{len(missing)} of {len(cells)} cells did not complete")
    return NOT_COMPLETED if missing else OK
