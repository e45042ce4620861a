"""Train one cell in fresh processes, and turn any ending into its record."""

import contextlib
import datetime
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from amp_sweep import config, record
from amp_sweep.config import RunConfig
from amp_sweep.launch.agent import Agent
from amp_sweep.launch.interrupts import Interrupts
from amp_sweep.launch.judge import Verdict, Watched, judge
from amp_sweep.launch.leftover import end_ranks
from amp_sweep.launch.nodes import ALONE, Node, announce, announced_job, wait_for_start
from amp_sweep.launch.watch import Report, read_endings, watch
from amp_sweep.lock import Lock, LockHeld, read_owner
from amp_sweep.messages import Plan, Preparation, RankJob
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record


def _clear(paths: RunPaths) -> None:
    for ending in paths.endings():
        ending.unlink(missing_ok=True)
    paths.progress.unlink(missing_ok=True)


def _start_over(paths: RunPaths) -> None:
    """Remove what an earlier run of this cell left, so that nothing is mixed with it."""
    for folder in (paths.checkpoints, paths.tensorboard):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (paths.epochs, paths.steps, *paths.root.glob("*.log")):
        file.unlink(missing_ok=True)


# What ends ranks whose launcher is gone: they notice it themselves.
LAUNCHER_GONE = "the process that watched the ranks was killed"


def _written(at: float) -> str:
    """A `time.time()` as the record has it."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def _agent(job: RankJob, node: Node, run_id: str = "", port: int = 0) -> Iterator[Agent]:
    """An agent, not started yet; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="amp_sweep_agent_") as folder:
        agent = Agent(job, Path(folder), node, run_id, port)
        try:
            yield agent
        finally:
            agent.close()


def run_cell(
    settings: RunConfig,
    overrides: list[str],
    root: Path,
    plan: Plan,
    prepared: str,
    here: Preparation,
    interrupts: Interrupts,
    report: Report,
    node: Node = ALONE,
) -> Record:
    """Train one cell in fresh processes, in the run directory `root`; its final record.

    Raises lock.LockHeld when another process has it, and OSError when nothing can be written.
    """
    paths = RunPaths(root)
    root.mkdir(parents=True, exist_ok=True)
    with Lock(paths.lock) as lock:
        _let_ranks_go(paths)
        begun = time.monotonic()
        earlier = _usable(paths)
        if earlier is not None and earlier.status in record.KEPT and not settings.force:
            return earlier  # another sweep did it since this one looked
        hardware = here.hardware[settings.device]
        if earlier is not None and not settings.force:
            over = conclude_if_trained(paths, earlier)
            if over is not None:
                return over
        resume = (
            earlier is not None and earlier.status in record.RESUMED_AGAIN and not settings.force
        )
        if earlier is not None:
            _close_last_segment(paths, earlier)
        _clear(paths)  # first: they say that the training is over, and it begins anew
        current = record_for(settings, overrides)
        if resume and earlier is not None:
            current.segments, current.notes = earlier.segments, earlier.notes
            current.epochs = earlier.epochs
        else:
            _start_over(paths)
        current.status = record.RUNNING
        current.environment = dict(here.environments[settings.device])
        jobs = current.environment["slurm_job_ids"]
        if resume and earlier is not None:
            before = earlier.environment.get("slurm_job_ids")
            known = [job for job in before if isinstance(job, str)] if type(before) is list else []
            jobs = [*dict.fromkeys([*known, *jobs])]
            current.environment["slurm_job_ids"] = jobs
        current.segments.append(
            {
                "started_at": _written(time.time()),
                "ended_at": None,
                "from_epoch": None,
                "from_step": None,
                "to_epoch": None,
                "device": hardware.device_names[0],
                "native_bf16": hardware.native_bf16(plan.replicas // plan.nodes),
                "torch": current.environment["torch"],
                "hostname": current.environment["hostname"],
                "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
            }
        )
        config.save(settings, paths.config)
        record.write_atomic(paths.overrides, yaml.safe_dump(list(overrides)))
        record.write(paths.record, current)

        job = RankJob(
            run_dir=str(root),
            prepared=prepared,
            plan=plan,
            launched_at=begun,
            local_world_size=plan.world_size // node.count,
            host=node.host,
            resume=resume,
        )
        with _agent(job, node) as agent:
            if node.count > 1:
                announce(paths, node, job=asdict(job), run_id=agent.run_id, port=agent.port)
            stall_s = settings.launch.stall_timeout_s
            here_too = node.ranks(plan.world_size)
            seen = watch(agent, paths, plan.world_size, stall_s, interrupts, report, here_too, lock)
        if not lock.is_ours():  # it was suspended for so long that another one has begun with it
            raise LockHeld(read_owner(paths.lock) or {})
        wall_s = time.monotonic() - begun
        return _conclude(paths, judge(seen, plan.world_size), time.time(), wall_s, seen.paused_s)


def help_cell(
    settings: RunConfig, root: Path, prepared: str, interrupts: Interrupts, node: Node
) -> None:
    """Run this node's share of a cell that the first node runs; the record is that one's.

    `prepared` is the folder of the data as this node sees it.
    """
    paths = RunPaths(root)
    values = wait_for_start(paths, node, lambda: interrupts.count)
    if values is None:
        return
    job = replace(announced_job(values), prepared=prepared, launched_at=time.monotonic())
    with _agent(job, node, values["run_id"], values["port"]) as agent:
        stall_s = settings.launch.stall_timeout_s
        ranks = job.plan.world_size
        here = node.ranks(ranks)
        watch(agent, paths, ranks, stall_s, interrupts, lambda _values: None, here)


def _usable(paths: RunPaths) -> Record | None:
    try:
        return record.read_if_there(paths.record)
    except record.RecordError:
        return None  # a half-written record is not a completed one


def _let_ranks_go(paths: RunPaths) -> None:
    """Return when no rank of an earlier run of this cell is left on this machine.

    On another machine a process id means another process: there the lock has told that the
    launcher is gone, long after its ranks.
    """
    found = _usable(paths)
    segment = found.segments[-1] if found is not None and found.segments else {}
    if segment.get("hostname", socket.gethostname()) == socket.gethostname():
        end_ranks(paths)


def _close_last_segment(paths: RunPaths, found: Record) -> None:
    """Give the last part of a run that was killed its end: its ranks' last sign of life."""
    segment = found.segments[-1] if found.segments else {}
    begun = _moment(segment.get("started_at"))
    if begun is None or segment.get("wall_s") is not None:
        return
    with contextlib.suppress(OSError):  # it was killed before the first
        ended = paths.progress.stat().st_mtime
        segment["ended_at"], segment["wall_s"] = _written(ended), max(0.0, ended - begun)
        segment["to_epoch"] = len(found.epochs)


def conclude_if_trained(paths: RunPaths, found: Record, what: str = LAUNCHER_GONE) -> Record | None:
    """Conclude a run whose launcher is gone, if its training was over; see that its ranks are too.

    found: its record; what: says how they ended. None where something is left to train, or where
    the record is too damaged to tell.
    """
    if found.status != record.RUNNING:
        return None
    _let_ranks_go(paths)
    now = _usable(paths)  # the last word of rank 0
    if now is not None and now.status in record.KEPT:
        return now
    if now is None or now.status != record.RUNNING or not now.segments:
        return None
    # Its own: they are removed before a run begins, and when its record says how it ended.
    endings = read_endings(paths)
    seen = Watched(endings=endings, agent_lost=True, agent_error=what)
    verdict = judge(seen, len(endings))
    if not endings or verdict.status != record.COMPLETED:
        return None
    begun = _moment(now.segments[-1].get("started_at"))
    if begun is None or not _has_figures(now):
        return None
    last = max(float(ending["time"]) for ending in endings.values())
    return _conclude(paths, verdict, last, max(0.0, last - begun))


def _has_figures(found: Record) -> bool:
    """Whether the training's figures are there, which rank 0 wrote before `trained` was said."""
    speed = found.metrics.get("images_per_s")
    needed = [found.metrics.get(name) for name in ("train_time_s", "test_accuracy")]
    return all(type(value) in (int, float) for value in (*needed, 0 if speed is None else speed))


def _moment(text: Any) -> float | None:
    """A time of the record as `time.time()` has it; None where it is none."""
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError, ArithmeticError):
        return None


def _seconds(value: Any) -> float:
    """A duration of the record; 0 where it is none."""
    try:
        return float(value) if type(value) in (int, float) else 0.0
    except OverflowError:
        return 0.0


def _conclude(
    paths: RunPaths, verdict: Verdict, ended: float, wall_s: float, paused_s: float = 0.0
) -> Record:
    """Write the ending into the record, which rank 0 has kept until now, and tidy up.

    ended: a `time.time()`, which somebody may have set meanwhile: `wall_s` is of another clock.
    """
    final = record.read(paths.record)
    final.status, final.error = verdict.status, verdict.error
    if verdict.note is not None:
        final.note(verdict.note)
    if paused_s:
        final.note(f"paused: stood still for {record.duration(paused_s)} while it trained")
    segment = final.segments[-1]
    # Of the machine that trained it: this one may be another.
    final.effective["native_bf16"] = segment.get("native_bf16")
    segment["ended_at"] = _written(ended)
    segment["wall_s"] = wall_s
    segment["to_epoch"] = len(final.epochs)
    final.metrics["wall_time_s"] = sum(_seconds(s.get("wall_s")) for s in final.segments)
    record.write(paths.record, final)
    _clear(paths)
    if final.status == record.COMPLETED:
        paths.last_checkpoint.unlink(missing_ok=True)
        paths.previous_checkpoint.unlink(missing_ok=True)
    return final


def record_for(settings: RunConfig, overrides: list[str]) -> Record:
    """A new record of a cell that was asked for."""
    return Record(
        name=settings.name,
        fingerprint=config.fingerprint(settings),
        status=record.PENDING,
        cell={
            "model": settings.model.name,
            "data": settings.data.name,
            "parallel": settings.parallel.name,
            "precision": settings.precision.name,
            "seed": settings.seed,
        },
        overrides=list(overrides),
        config=config.to_dict(settings),
    )
