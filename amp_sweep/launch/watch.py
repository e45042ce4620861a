"""Watch the ranks of one cell, end them when one fails or stalls, judge how they ended."""

import contextlib
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
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

Report = Callable[[dict[str, Any]], None]


@dataclass
class Watched:
    """What the watcher saw of the ranks of one cell."""

    endings: dict[int, dict[str, Any]] = field(default_factory=dict)
    exitcodes: dict[int, int | None] = field(default_factory=dict)
    stopped: bool = False  # we asked the ranks to save and stop
    stalled: bool = False  # no progress: we killed them


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


def _signal(pids: list[int], number: int) -> None:
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
) -> Watched:
    """Wait for the agent; pass progress on; end the ranks when one fails, stalls, or on Ctrl-C."""
    seen = Watched()
    processes: dict[int, BaseProcess] = {}
    last_sign, last_values = time.monotonic(), None
    deadline: float | None = None
    killed = False
    agent.start()
    while agent.is_alive():
        agent.join(POLL_S)
        for rank in range(ranks):
            ending = _read_json(paths.ending(rank))
            if ending is not None:
                seen.endings[rank] = ending
        pids = {rank: int(ending["pid"]) for rank, ending in seen.endings.items()}
        if len(pids) == ranks and not processes:
            # Held from now on for their exit codes: the agent reports only the first it notices.
            children = {child.pid: child for child in multiprocessing.active_children()}
            processes = {rank: children[pid] for rank, pid in pids.items() if pid in children}
        values = _read_json(paths.progress)
        if values is not None and values != last_values:
            last_sign, last_values = time.monotonic(), values
            report(values)

        ended = [r for r, e in seen.endings.items() if e["kind"] != record.RUNNING]
        vanished = [r for r, pid in pids.items() if r not in ended and not _runs(pid)]
        failed = [r for r in ended if "error" in seen.endings[r]] + vanished
        now = time.monotonic()
        if interrupts.count and not seen.stopped and pids:
            seen.stopped = True
            _signal(list(pids.values()), signal.SIGUSR1)
            deadline = now + GRACE_S
        if failed and deadline is None:
            deadline = now + GRACE_S
        if now - last_sign > stall_s and not killed:
            seen.stalled = True
        overdue = deadline is not None and now > deadline
        if (overdue or seen.stalled or interrupts.count > 1) and not killed:
            killed = True
            _signal(list(pids.values()), signal.SIGKILL)
    for rank in range(ranks):
        ending = _read_json(paths.ending(rank))
        if ending is not None:
            seen.endings[rank] = ending
        seen.exitcodes[rank] = processes[rank].exitcode if rank in processes else None
    return seen


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


def judge(seen: Watched, ranks: int, agent_error: BaseException | None) -> tuple[str, Any]:
    """The status of the cell, and its error, from what each rank said and how it ended."""
    kinds = {rank: seen.endings.get(rank, {}).get("kind") for rank in range(ranks)}
    if all(kind == record.COMPLETED for kind in kinds.values()):
        return record.COMPLETED, None
    said = [ending for ending in seen.endings.values() if "error" in ending]
    # A rank that is gone without a word died first: its neighbours lived to tell of it.
    silent = [rank for rank, kind in kinds.items() if kind in (None, record.RUNNING)]
    if seen.stopped:
        return record.INTERRUPTED, None
    if seen.stalled:
        message = "no progress within launch.stall_timeout_s; the ranks were ended"
        return record.TIMEOUT, {"type": "Stalled", "message": message, "traceback": None,
                                "rank": None, "exitcode": None}  # fmt: skip
    own = [ending for ending in said if not _is_echo(ending)]
    if silent and not own:
        rank = silent[0]
        code = seen.exitcodes.get(rank)
        message = f"rank {rank} {_how_it_died(code)}"
        if not seen.endings and agent_error is not None:
            message = f"the ranks did not start: {agent_error}"
        return record.FAILED, {"type": "RankDied", "message": message, "traceback": None,
                               "rank": rank, "exitcode": code}  # fmt: skip
    if said:
        first = min(own or said, key=lambda ending: float(ending["time"]))
        error = {**first["error"], "rank": first["rank"],
                 "exitcode": seen.exitcodes.get(first["rank"])}  # fmt: skip
        return first["kind"], error
    if all(kind in (record.COMPLETED, record.INTERRUPTED) for kind in kinds.values()):
        return record.INTERRUPTED, None
    message = str(agent_error) if agent_error else "the ranks ended without a result"
    return record.FAILED, {"type": "LaunchError", "message": message, "traceback": None,
                           "rank": None, "exitcode": None}  # fmt: skip


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
