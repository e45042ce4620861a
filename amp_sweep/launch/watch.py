"""Watch the ranks of one cell, end them when one fails or stalls, judge how they ended."""

import contextlib
import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from amp_sweep import record
from amp_sweep.launch.agent import Agent
from amp_sweep.launch.interrupts import Interrupts
from amp_sweep.paths import RunPaths

POLL_S = 0.05
# After the first rank has ended badly, or all were told to stop, the others get this long.
GRACE_S = 5.0
# A rank that is writing its checkpoint when it is told to stop gets this much longer.
SAVE_S = 120.0

Report = Callable[[dict[str, Any]], None]


@dataclass
class Watched:
    """What the watcher saw of the ranks of one cell."""

    endings: dict[int, dict[str, Any]] = field(default_factory=dict)
    exitcodes: dict[int, int | None] = field(default_factory=dict)
    stopped: bool = False  # we asked the ranks to save and stop
    stalled: bool = False  # no progress: we killed them
    oom_kills: int = 0  # by the kernel, on this machine, while the cell ran


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def watch(
    agent: Agent,
    paths: RunPaths,
    ranks: int,
    stall_s: float,
    interrupts: Interrupts,
    report: Report,
    local: range | None = None,
) -> Watched:
    """Wait for the agent; pass progress on; end the ranks when one fails, stalls, or on Ctrl-C.

    `local` are the ranks on this machine, where there are others: they are ended there.
    """
    own = range(ranks) if local is None else local
    seen = Watched()
    oom_kills_before = _oom_kills()
    processes: dict[int, BaseProcess] = {}
    last_sign, last_values = time.monotonic(), None
    deadline: float | None = None  # when the ranks that are left are killed
    agent.start()
    while agent.is_alive():
        agent.join(POLL_S)
        _read_endings(paths, ranks, seen)
        pids = {r: int(e["pid"]) for r, e in seen.endings.items() if r in own}
        if len(pids) == len(own) and not processes:
            # Held from now on for their exit codes: the agent reports only the first it notices.
            children = {child.pid: child for child in multiprocessing.active_children()}
            processes = {rank: children[pid] for rank, pid in pids.items() if pid in children}
        values = _read_json(paths.progress)
        if values is not None and values != last_values:
            last_sign, last_values = time.monotonic(), values
            report(values)

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
                break  # the agent waits for the result of a rank that left without one
    _read_endings(paths, ranks, seen)
    seen.exitcodes = {rank: process.exitcode for rank, process in processes.items()}
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


def _read_endings(paths: RunPaths, ranks: int, seen: Watched) -> None:
    for rank in range(ranks):
        ending = _read_json(paths.ending(rank))
        if ending is not None:
            seen.endings[rank] = ending


def _how_it_died(code: int | None) -> str:
    if code is None:
        return "ended without a word"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"was killed by {name}"
    return f"ended without a word, with exit code {code}"


def _error(kind: str, message: str, rank: int | None = None, code: int | None = None) -> Any:
    return {"type": kind, "message": message, "traceback": None, "rank": rank, "exitcode": code}


def judge(seen: Watched, ranks: int, agent_error: BaseException | None) -> tuple[str, Any]:
    """The status of the cell, and its error, from what each rank said and how it ended."""
    kinds = {rank: seen.endings.get(rank, {}).get("kind") for rank in range(ranks)}
    if all(kind == record.COMPLETED for kind in kinds.values()):
        return record.COMPLETED, None
    if seen.stopped:
        return record.INTERRUPTED, None
    if seen.stalled:
        message = "no progress within launch.stall_timeout_s; the ranks were ended"
        return record.TIMEOUT, _error("Stalled", message)
    if not seen.endings:
        return record.FAILED, _error("LaunchError", f"the ranks did not start: {agent_error}")
    said = [ending for ending in seen.endings.values() if "error" in ending]
    own = [ending for ending in said if not _is_echo(ending)]
    silent = [rank for rank, kind in kinds.items() if kind in (None, record.RUNNING)]
    # A rank that is gone without a word died first: its neighbours lived to tell of it.
    if silent and not own:
        rank = min(silent, key=lambda rank: kinds[rank] is None)
        code = seen.exitcodes.get(rank)
        if code == -signal.SIGKILL and seen.oom_kills:
            return record.OOM, _error(
                "OutOfHostMemory", f"the kernel killed rank {rank} for want of memory", rank, code
            )
        return record.FAILED, _error("RankDied", f"rank {rank} {_how_it_died(code)}", rank, code)
    if said:
        first = min(own or said, key=lambda ending: float(ending["time"]))
        error = {"rank": first["rank"], **first["error"]}
        error["exitcode"] = seen.exitcodes.get(first["rank"])
        return first["kind"], error
    return record.INTERRUPTED, None  # all saved and stopped: somebody else told them to


# What a rank says when another one has gone.
ECHOES = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "NCCL communicator was aborted",
    "remote process exited",
)


def _is_echo(ending: dict[str, Any]) -> bool:
    message = f"{ending['error'].get('type')}: {ending['error'].get('message')}"
    return any(echo in message for echo in ECHOES)
