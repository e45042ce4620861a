"""Watch the ranks of one cell, end them when one fails or stalls."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeGuard

import psutil

from amp_sweep import record
from amp_sweep.launch.agent import Agent
from amp_sweep.launch.interrupts import Interrupts
from amp_sweep.launch.judge import Watched
from amp_sweep.lock import Lock
from amp_sweep.paths import RunPaths

POLL_S = 0.05
# After the first rank has ended badly, or all were told to stop, the others get this long.
GRACE_S = 5.0
# A look around that takes so much longer than POLL_S: all of us were stopped (Ctrl-Z, a suspended
# job), or the file system stood still.
PAUSED_S = 3.0
# No time of a record is after the year 9999.
MAX_TIME_S = 253_402_300_799
# A rank that is writing its checkpoint when it is told to stop gets this much longer.
SAVE_S = 120.0

Report = Callable[[dict[str, Any]], None]


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        # Another user's has the number of a rank that is gone.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def watch(
    agent: Agent,
    paths: RunPaths,
    ranks: int,
    stall_s: float,
    interrupts: Interrupts,
    report: Report,
    local: range | None = None,
    lock: Lock | None = None,
) -> Watched:
    """Wait for the agent; pass progress on; end the ranks when one fails, stalls, or on Ctrl-C.

    `local` are the ranks on this machine, where there are others: they are ended there. Where
    somebody else took the `lock` meanwhile, the cell is his: they are ended at once.
    """
    own = range(ranks) if local is None else local
    seen = Watched()
    oom_kills_before = _oom_kills()
    last_sign, last_values = time.monotonic(), None
    deadline: float | None = None  # when the ranks that are left are killed
    agent.start()
    awake = time.monotonic()
    while agent.runs(POLL_S):
        seen.endings |= read_endings(paths)
        pids = {r: int(e["pid"]) for r, e in seen.endings.items() if r in own}
        values = record.read_object(paths.progress)
        paused_s = time.monotonic() - awake - POLL_S
        if paused_s > PAUSED_S:
            last_sign += paused_s
            deadline = None if deadline is None else deadline + paused_s
            if not any(ending.get("trained") for ending in seen.endings.values()):
                seen.paused_s += paused_s
        if values is not None and values != last_values:
            last_sign, last_values = time.monotonic(), values
            report(values)  # it may wait for who reads the screen, and the ranks do not
        awake = time.monotonic()

        if lock is not None and (lock.lost or (paused_s > PAUSED_S and not lock.is_ours())):
            _signal(pids.values(), signal.SIGKILL)
            agent.end()
            break

        now = time.monotonic()
        alive = {rank for rank, pid in pids.items() if _runs(pid)}
        ended = {r for r, e in seen.endings.items() if e["kind"] != record.RUNNING}
        failed = any("error" in ending for ending in seen.endings.values())
        vanished = set(pids) - alive - ended
        if interrupts.count and not seen.stopped and len(pids) == len(own):
            seen.stopped = True
            _signal(pids.values(), signal.SIGUSR1)
            deadline = now + interrupts.grace_s
        if (failed or vanished) and deadline is None:
            deadline = now + GRACE_S
        if now - last_sign > stall_s:
            seen.stalled = True
        saving = seen.stopped and (last_values or {}).get("doing") == "save"
        overdue = deadline is not None and now > deadline + (SAVE_S if saving else 0.0)
        if overdue or seen.stalled or interrupts.count > 1:
            _signal(pids.values(), signal.SIGKILL)
            if overdue and pids and not alive:
                agent.end()  # it waits for the result of a rank that left without one
                break
    seen.endings |= read_endings(paths)
    pids = {r: int(e["pid"]) for r, e in seen.endings.items() if r in own}
    if agent.lost:
        # They notice it too, and go; those that are in the middle of a call may take a while.
        _signal((pid for pid in pids.values() if _runs(pid)), signal.SIGKILL)
    seen.agent_error, seen.agent_lost = agent.error, agent.lost
    seen.exitcodes = {r: agent.exitcodes[p] for r, p in pids.items() if p in agent.exitcodes}
    seen.oom_kills = _oom_kills() - oom_kills_before
    return seen


def _oom_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started."""
    try:
        text = Path("/proc/vmstat").read_text(encoding="ascii")
    except OSError:  # not Linux
        return 0
    found = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(found.group(1)) if found else 0


def read_endings(paths: RunPaths) -> dict[int, dict[str, Any]]:
    """What each rank has said so far of how far it came and how it ended.

    A file that holds no ending, since it was damaged, counts as if it were not there.
    """
    found = [record.read_object(path) for path in paths.endings()]
    return {ending["rank"]: ending for ending in found if _is_ending(ending)}


def _is_ending(values: dict[str, Any] | None) -> TypeGuard[dict[str, Any]]:
    """Whether all is there that is read of an ending, as `worker/process.py` writes it."""
    if values is None:
        return False
    rank, pid, at, kind = (values.get(name) for name in ("rank", "pid", "time", "kind"))
    return (
        type(rank) is int
        and rank >= 0
        and type(pid) is int
        and 1 < pid < 2**31  # a signal to 0 or to a negative number reaches whole groups
        and isinstance(at, int | float)
        and 0 <= at < MAX_TIME_S  # neither NaN nor infinite
        and kind in record.STATUSES
        and ("error" not in values or _is_error(values["error"]))
    )


def _is_error(values: Any) -> bool:
    return (
        isinstance(values, dict)
        and isinstance(values.get("type"), str)
        and isinstance(values.get("message"), str)
        and isinstance(values.get("traceback", 0), str | None)
    )
