"""Ranks whose launcher was killed: they notice it and go, and until then nothing may begin.

Rank 0 may be in the middle of writing the record or a checkpoint: what is read before it has
gone may be replaced behind the reader's back.
"""

import contextlib
import time
from pathlib import Path
from typing import Any

import psutil

from amp_sweep.launch.watch import GRACE_S, POLL_S, read_endings
from amp_sweep.paths import RunPaths

# They look for their launcher twice a second; one that is in the middle of a call takes longer.
WAIT_S = 10.0

# A process's start is known by the system's clock to the second only.
CLOCK_S = 2.0


def end_ranks(paths: RunPaths) -> None:
    """Return when no rank that wrote an ending here runs; one that stays for WAIT_S is killed.

    A process that is not known for certain to be the rank is neither waited for nor touched.
    """
    found = (_rank(paths.log(rank), ending) for rank, ending in read_endings(paths).items())
    left = [process for process in found if process is not None]
    if _all_go(left, WAIT_S):
        return
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()  # looks again whether the process id was given to another one
    _all_go(left, GRACE_S)


def _rank(log: Path, ending: dict[str, Any]) -> psutil.Process | None:
    """The process of a rank, if it still runs.

    A process id is used again: another process began after the rank's last word, and does not
    have the rank's log open.
    """
    try:
        process = psutil.Process(ending["pid"])
        if not _runs(process) or process.create_time() > ending["time"] + CLOCK_S:
            return None
        logs = any(Path(file.path).samefile(log) for file in process.open_files())
    except (psutil.Error, OSError):
        return None
    return process if logs else None


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _all_go(processes: list[psutil.Process], wait_s: float) -> bool:
    """Whether none of them is left; waits for that for `wait_s` at most."""
    deadline = time.monotonic() + wait_s
    while any(_runs(process) for process in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
