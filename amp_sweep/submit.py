"""The submitting side of a sweep on SLURM: what jobs need, what they became, when to stop waiting.

Results are read from the records alone. SLURM is asked only whether a job can still write one.
"""

import json
import shlex
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_sweep import config, launch, record, slurm, source
from amp_sweep.job import CellJob
from amp_sweep.lock import is_alive, read_owner
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record
from amp_sweep.screen import Screen
from amp_sweep.sweep import NOT_COMPLETED, OK, STOPPED, Cell

POLL_S = 0.5
# SLURM's controller serves everyone: it is asked rarely.
ASK_S = 10.0
ASK_AT_FIRST_S = 2.0
# For so long after the submission it is asked more often, so that a bad request shows at once.
AT_FIRST_S = 60.0
# A last record may reach this machine's view of the file system later than SLURM's word.
LATE_S = 3.0

# Statuses after which no requeue follows.
FINAL = frozenset(
    {
        record.COMPLETED,
        record.DIVERGED,
        record.FAILED,
        record.INVALID,
        record.OOM,
        record.TIMEOUT,
    }
)

# Takes the jobs and what they need; their ids, in the same order.
Send = Callable[[list[CellJob], dict[str, Any]], list[str]]


# ------------------------------------------------------------------ what jobs need


def layout_problems(params: dict[str, Any], cells: Sequence[Cell]) -> list[str]:
    """What is wrong with the launcher's settings for these cells, for a person."""
    problems = []
    tasks = params.get("tasks_per_node") or 1
    if tasks != 1:
        problems.append(
            f"hydra.launcher.tasks_per_node={tasks}: a job has one task per node, which starts "
            "the ranks itself; leave it at 1 and set parallel.devices"
        )
    nodes = params.get("nodes") or 1
    names = sorted({cell.config.parallel.name for cell in cells} - {"ddp"})
    if nodes > 1 and names:
        problems.append(
            f"hydra.launcher.nodes={nodes}: parallel={','.join(names)} uses one node; submit "
            "those cells with hydra/launcher=slurm"
        )
    return problems


def _devices(cell: Cell, offered: int) -> int:
    """How many devices the cell uses on a node that has `offered` GPUs."""
    settings = cell.config
    if settings.parallel.name == "none":
        return 1
    if isinstance(settings.parallel.devices, int):
        return settings.parallel.devices
    if not offered:
        return 2 if settings.parallel.name == "ddp" else 1
    if settings.data.batch_mode == "per_device":
        return offered
    return next(n for n in range(offered, 0, -1) if settings.data.batch_size % n == 0)


def needs(params: dict[str, Any], cells: Sequence[Cell]) -> dict[str, Any]:
    """GPUs for the largest cell and cores for its ranks, where the settings leave them open."""
    nodes = params.get("nodes") or 1
    named = any(params.get(key) for key in ("gres", "gpus_per_task"))
    offered = params.get("gpus_per_node")
    on_gpus = any(cell.config.device in ("auto", "cuda") for cell in cells)
    found: dict[str, Any] = {}
    if offered is None and not named:
        offered = slurm.gpus_per_node(params.get("partition")) if on_gpus else 0
        total = max(_devices(cell, offered * nodes) for cell in cells)
        offered = min(offered, -(-total // nodes))
        found["gpus_per_node"] = offered or None
    if params.get("cpus_per_task") is None and not params.get("cpus_per_gpu"):
        found["cpus_per_task"] = max(
            -(-_devices(cell, (offered or 0) * nodes) // nodes) * (1 + cell.config.data.workers)
            for cell in cells
        )
    return found


# ------------------------------------------------------------------ submitting


@dataclass
class Submitted:
    """A cell and the job that trains it."""

    cell: Cell
    job_id: str
    before: bytes | None  # its record at submission: what differs from it is the job's
    running: bool = False
    seen_over_at: float | None = None  # when SLURM first said that the job is over

    @property
    def paths(self) -> RunPaths:
        """The cell's files."""
        return RunPaths(self.cell.root)


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def job_of(paths: RunPaths) -> str | None:
    """The id of the job that a cell was last submitted as."""
    try:
        return str(json.loads(paths.job.read_text(encoding="utf-8"))["job_id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _own_callables(cell: Cell) -> list[str]:
    names = (cell.config.model.name, cell.config.data.name)
    return [name for name in names if config.is_own_callable(name)]


def _make_job(cell: Cell, code: dict[str, str], nodes: int) -> CellJob:
    return CellJob(
        settings=config.to_dict(cell.config),
        overrides=cell.overrides,
        folder=str(Path.cwd()),
        root=str(cell.root),
        code=code,
        nodes=nodes,
    )


def _queued(cells: list[Cell], screen: Screen) -> dict[Path, str]:
    """Cells whose job of an earlier submission has not ended; locks of ended jobs are removed."""
    ids = {cell.root: job_of(RunPaths(cell.root)) for cell in cells}
    owners = {cell.root: read_owner(RunPaths(cell.root).lock) for cell in cells}
    asked = {job for job in ids.values() if job}
    asked |= {str(owner["job_id"]) for owner in owners.values() if owner and owner.get("job_id")}
    if not asked:
        return {}
    try:
        known, _ = slurm.ask(asked)
    except slurm.Unanswered as error:
        screen.warn(f"earlier jobs are not known: {error}")
        return {}
    queued = {}
    for root, owner in owners.items():
        holder = str(owner["job_id"]) if owner and owner.get("job_id") else None
        for job in (ids[root], holder):
            if job in known and not known[job].over:
                queued[root] = known[job].id
        if holder and root not in queued:
            RunPaths(root).lock.unlink(missing_ok=True)
    return queued


def run(
    cells: list[Cell],
    params: dict[str, Any],
    send: Send,
    screen: Screen,
    interrupts: launch.Interrupts,
) -> int | None:
    """Submit what is not queued yet, and follow it; None once every record tells its ending."""
    before = {cell.root: _bytes(RunPaths(cell.root).record) for cell in cells}
    queued = _queued(cells, screen)
    new = [cell for cell in cells if cell.root not in queued]
    for cell in cells:
        if cell.root in queued:
            screen.say(f"already submitted: {cell.label} (job {queued[cell.root]})")
    jobs = dict(queued)
    if new:
        own = sorted({name for cell in new for name in _own_callables(cell)})
        code = source.hashes(own)
        extra = needs(params, new)
        if cells[0].config.launch.snapshot:
            copy = source.snapshot(own, cells[0].root.parent / ".code")
            screen.say(f"the jobs run a copy of the code: {copy}")
            code = {}  # the copy's: nobody edits it
            extra["snapshot"] = str(copy)
        try:
            nodes = params.get("nodes") or 1
            ids = send([_make_job(cell, code, nodes) for cell in new], extra)
        except SubmissionRefused as error:
            screen.fail(str(error))
            return NOT_COMPLETED
        for cell, job_id in zip(new, ids, strict=True):
            record.write_atomic(RunPaths(cell.root).job, json.dumps({"job_id": job_id}))
            jobs[cell.root] = job_id
    waiting = [Submitted(cell, jobs[cell.root], before[cell.root]) for cell in cells]
    arrays = list(dict.fromkeys(slurm.array_of(item.job_id) for item in waiting))
    screen.say(f"{len(new)} of {len(cells)} cells submitted; job {', '.join(arrays)}")
    ways = _ways(cells, arrays)
    if not cells[0].config.launch.wait:
        screen.say(ways)
        return OK
    return _follow(waiting, screen, interrupts, ways)


class SubmissionRefused(Exception):
    """SLURM did not take the jobs; the message is its own."""


def _ways(cells: list[Cell], arrays: list[str]) -> str:
    """The commands for a person whose jobs go on without this process."""
    folders = dict.fromkeys(str(cell.root.parent) for cell in cells)
    where = shlex.join(folders)
    return (
        f"  to follow:   python -m amp_sweep.status {where}\n"
        f"  the table:   python -P -m analysis {where}\n"
        f"  to cancel:   scancel {' '.join(arrays)}"
    )


# ------------------------------------------------------------------ following


def _follow(
    waiting: list[Submitted], screen: Screen, interrupts: launch.Interrupts, ways: str
) -> int | None:
    total = len(waiting)
    began = time.monotonic()
    asked_at = float("-inf")
    known: dict[str, slurm.Job] = {}
    unanswered = False
    while waiting:
        if interrupts.count:
            screen.warn(f"{len(waiting)} jobs go on without this process\n{ways}")
            return STOPPED
        now = time.monotonic()
        if now - asked_at >= (ASK_AT_FIRST_S if now - began < AT_FIRST_S else ASK_S):
            asked_at = now
            try:
                known, _ = slurm.ask(item.job_id for item in waiting)
                unanswered = False
            except slurm.Unanswered as error:
                known = {}
                if not unanswered:
                    screen.warn(f"SLURM does not answer, still waiting: {error}")
                unanswered = True
            else:
                _see_over(waiting, known, now)
        ended = [item for item in waiting if _has_ended(item, known, now)]
        for item in ended:
            waiting.remove(item)
            found = _final(item, known.get(item.job_id))
            screen.cell_ends(item.cell.label, found)
            if found.status != record.COMPLETED and item.cell.config.launch.on_error == "stop":
                screen.warn("cancelling the other jobs (launch.on_error=stop)")
                slurm.cancel(other.job_id for other in waiting)
        if waiting:
            _say_where(waiting, known, total, screen)
            time.sleep(POLL_S)
    return None


def _see_over(waiting: list[Submitted], known: dict[str, slurm.Job], now: float) -> None:
    for item in waiting:
        job = known.get(item.job_id)
        if job is not None and not job.over:
            item.seen_over_at = None  # requeued
        elif item.seen_over_at is None:
            item.seen_over_at = now


def _has_ended(item: Submitted, known: dict[str, slurm.Job], now: float) -> bool:
    late = item.seen_over_at is not None and now - item.seen_over_at >= LATE_S
    if late:
        return True
    content = _bytes(item.paths.record)
    if content is None or content == item.before:
        return False
    try:
        return record.read(item.paths.record).status in FINAL
    except record.RecordError:
        return False


def _final(item: Submitted, job: slurm.Job | None) -> Record:
    """The record of a cell whose job is over; what the job could not write is written here."""
    changed = _bytes(item.paths.record) != item.before
    try:
        found = record.read(item.paths.record)
    except record.RecordError:
        found, changed = launch.record_for(item.cell.config, list(item.cell.overrides)), False
    if found.status in record.KEPT:  # a result stands, whatever became of a job after it
        return found
    if changed and found.status not in (record.PENDING, record.RUNNING):
        return found
    owner = read_owner(item.paths.lock)
    if owner is not None:
        its_own = owner.get("job_id") and (job is None or job.raw_id == str(owner["job_id"]))
        if not its_own and is_alive(item.paths.lock, owner):
            return found  # the job left the cell to another process, which trains it
    state = job.state if job else "unknown to SLURM"
    where = f" on {job.nodes}" if job and job.nodes else ""
    if changed and found.status == record.RUNNING:
        what = "ended in the middle of its run"
    else:
        what = "ended before it began with the cell"
    found.status = {
        "CANCELLED": record.INTERRUPTED,
        "PREEMPTED": record.INTERRUPTED,
        "TIMEOUT": record.TIMEOUT,
        "OUT_OF_MEMORY": record.OOM,
    }.get(state, record.FAILED)
    message = f"job {item.job_id} {what}: {state}{where}; {_last_words(item)}"
    found.error = record.error_of("JobEnded", message)
    if owner is not None:
        item.paths.lock.unlink(missing_ok=True)
    record.write(item.paths.record, found)
    return found


def _last_words(item: Submitted) -> str:
    """The end of what the job printed, or where to look."""
    folder = item.cell.root.parent / ".submitit"
    logs = sorted(folder.glob(f"*/{item.job_id}_0_log.err"))
    lines = logs[-1].read_text(encoding="utf-8", errors="replace").splitlines() if logs else []
    words = [line for line in lines if line.strip() and "submitit" not in line][-3:]
    if words:
        return "its last words: " + " / ".join(words)
    return f"it printed nothing: can its node see {item.cell.root.parent}?"


def _say_where(
    waiting: list[Submitted], known: dict[str, slurm.Job], total: int, screen: Screen
) -> None:
    states: Counter[str] = Counter()
    for item in waiting:
        job = known.get(item.job_id)
        if job is None:
            continue
        if job.state == "RUNNING" and not item.running:
            item.running = True
            screen.say(f"running: {item.cell.label} (job {job.id} on {job.nodes})")
        reason = f" ({job.reason})" if job.state == "PENDING" and job.reason != "None" else ""
        states[job.state.lower() + reason] += 1
    words = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    if total - len(waiting) < total:
        screen.preparing(words or "submitted", total - len(waiting), total)
