"""A sweep: check every cell, drop what is done, order, run here or submit, print, exit code."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from amp_sweep import ctrl_c, launch, legality, local, record
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
    tell_apart,
    write_pending,
)
from amp_sweep.screen import Screen

POLL_S = 0.05

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
    asked = tell_apart(order(cells))
    screen = Screen(len(asked))
    with launch.Interrupts() as interrupts, _no_empty_folders(asked):
        if not _all_legal(asked, screen) or not _writable(asked, screen):
            return NOT_COMPLETED
        strangers = [cell for cell in asked if not is_ours(cell, screen)]
        if strangers:
            return NOT_COMPLETED
        with screen:
            done = [cell for cell in asked if is_kept(cell)]
            left = [cell for cell in asked if cell not in done]
            if submit is None:
                try:
                    code = local.run(asked, done, left, screen, interrupts, node)
                except launch.NotPrepared as error:
                    if not tables:  # a job, which writes it into the record
                        raise
                    for problem in error.args:
                        screen.fail(problem)
                    return NOT_COMPLETED
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
            print_tables(asked, interrupts)
        if not interrupts.count:
            return _exit_code(asked, screen)
        if submit is None and tables and not all(is_kept(cell) for cell in asked):
            screen.warn("interrupted; the same command goes on from here")
        return STOPPED


@contextlib.contextmanager
def _no_empty_folders(cells: Sequence[Cell]) -> Iterator[None]:
    """Take away those folders of the sweep that are new and, at the end, empty."""
    new: dict[Path, None] = {}
    for cell in cells:
        for folder in cell.root.parents:
            if os.path.exists(folder):  # noqa: PTH110 - never raises
                break
            new[folder] = None
    try:
        yield
    finally:
        for folder in sorted(new, key=lambda folder: -len(folder.parts)):
            with contextlib.suppress(OSError):  # it holds something, or was never made
                folder.rmdir()


def _all_legal(cells: list[Cell], screen: Screen) -> bool:
    problems: dict[str, None] = {}
    for cell in cells:
        problems.update(dict.fromkeys(legality.check(cell.config, cell.overrides)))
    for problem in problems:
        screen.fail(problem)
    return not problems


def _writable(cells: list[Cell], screen: Screen) -> bool:
    for folder in {cell.root.parent for cell in cells}:
        try:
            if cells[0].config.plan:
                with contextlib.suppress(FileNotFoundError):
                    folder.stat()
                continue
            folder.mkdir(parents=True, exist_ok=True)
            # A name of its own: other cells of the sweep may begin in this moment, as jobs.
            tempfile.NamedTemporaryFile(prefix=".writable-", dir=folder).close()
        except OSError as error:
            screen.fail(f"cannot write to {folder}: {_reason(error)}")
            return False
    return True


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError) and os.path.islink(error.filename or ""):  # noqa: PTH114
        return f"{error.filename} is a link to what does not exist"
    return error.strerror or str(error)


def print_tables(cells: Sequence[Cell], interrupts: launch.Interrupts) -> None:
    """The comparison, by the same program that a person calls: `python -m analysis`.

    A Ctrl-C while it is made ends it.
    """
    folders = list(dict.fromkeys(str(cell.root.parent) for cell in cells))
    sys.stdout.flush()
    # -P: a folder named `analysis` in the working directory must not shadow ours.
    command = [sys.executable, "-P", "-m", "analysis", "--no-pictures", *folders]
    before = interrupts.count
    with ctrl_c.held():  # the terminal's reaches it too: it would end with a traceback
        process = subprocess.Popen(command)
    while interrupts.count == before:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
            return
    process.kill()
    process.wait()


def _exit_code(cells: list[Cell], screen: Screen) -> int:
    missing = [
        cell for cell in cells if (found := read(cell)) is None or found.status != record.COMPLETED
    ]
    if missing:
        noun = "cell" if len(cells) == 1 else "cells"
        screen.warn(f"{len(missing)} of {len(cells)} {noun} did not complete")
    return NOT_COMPLETED if missing else OK
