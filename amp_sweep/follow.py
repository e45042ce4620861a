"""Jobs on SLURM, followed until every record tells its ending. No torch here.

Results are read from the records alone. SLURM is asked only whether a job can still write one.
"""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from amp_sweep import launch, record, slurm
from amp_sweep.cells import STOPPED, Cell
from amp_sweep.lock import is_alive, read_owner
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record
from amp_sweep.screen import Screen

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


@dataclass
class Submitted:
    """A cell and the job that trains it."""

    cell: Cell
    job_id: str
    before: bytes | None  # its record at submission: what differs from it is the job's
    running: bool = False
    looked_at: tuple[int, int] | None = None  # the state of its record when it was last read
    seen_over_at: float | None = None  # when SLURM first said that the job is over

    @property
    def paths(self) -> RunPaths:
        """The cell's files."""
        return RunPaths(self.cell.root)


def content_of(path: Path) -> bytes | None:
    """What is in a file; None where it cannot be read."""
    try:
        return record.read_regular(path)
    except OSError:
        return None


def follow(
    waiting: list[Submitted], screen: Screen, interrupts: launch.Interrupts, ways: str
) -> int | None:
    """Wait for the jobs; an exit code when a person interrupts, who is then told the `ways` on."""
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
    state = _state_of(item.paths.record)
    if state == item.looked_at:
        return False
    item.looked_at = state
    content = content_of(item.paths.record)
    if content is None or content == item.before:
        return False
    try:
        return record.read(item.paths.record).status in FINAL
    except record.RecordError:
        return False


def _state_of(path: Path) -> tuple[int, int] | None:
    """Which version of a file this is: each is written as a new one."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _final(item: Submitted, job: slurm.Job | None) -> Record:
    """The record of a cell whose job is over; what the job could not write is written here."""
    changed = content_of(item.paths.record) != item.before
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
        ended = f"job {item.job_id} ended: {state}{where}"
        trained = launch.conclude_if_trained(item.paths, found, ended)
        if trained is not None:
            item.paths.lock.unlink(missing_ok=True)
            return trained
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
