"""Train one cell in fresh processes, and turn any ending into its record."""

import datetime
import shutil
import time
from pathlib import Path
from typing import Any

import yaml

from amp_sweep import config, record
from amp_sweep.config import RunConfig
from amp_sweep.hardware import Hardware
from amp_sweep.launch.agent import LOOPBACK, Agent, quietly, register_loopback
from amp_sweep.launch.interrupts import Interrupts
from amp_sweep.launch.watch import Report, judge, watch
from amp_sweep.lock import Lock
from amp_sweep.parallel import Plan
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record
from amp_sweep.worker import Preparation, RankJob


def _clear(paths: RunPaths, ranks: int) -> None:
    for rank in range(ranks):
        paths.ending(rank).unlink(missing_ok=True)
    paths.progress.unlink(missing_ok=True)


def _start_over(paths: RunPaths) -> None:
    """Remove what an earlier run of this cell left, so that nothing is mixed with it."""
    for folder in (paths.checkpoints, paths.tensorboard):
        shutil.rmtree(folder, ignore_errors=True)
    for file in (paths.epochs, paths.steps, *paths.root.glob("*.log")):
        file.unlink(missing_ok=True)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def run_cell(
    settings: RunConfig,
    overrides: list[str],
    root: Path,
    plan: Plan,
    prepared: str,
    here: Preparation,
    interrupts: Interrupts,
    report: Report,
) -> Record:
    """Train one cell in fresh processes, in the run directory `root`; its final record.

    Raises lock.LockHeld when another process has it, and OSError when nothing can be written.
    """
    paths = RunPaths(root)
    root.mkdir(parents=True, exist_ok=True)
    with Lock(paths.lock):
        begun = time.time()
        earlier = _usable(paths)
        resume = (
            earlier is not None and earlier.status in record.RESUMED_AGAIN and not settings.force
        )
        current = record_for(settings, overrides)
        if resume and earlier is not None:
            current.segments, current.notes = earlier.segments, earlier.notes
            current.epochs = earlier.epochs
        else:
            _start_over(paths)
        current.status = record.RUNNING
        hardware = here.hardware[settings.device]
        current.environment = dict(here.environments[settings.device])
        current.segments.append(
            {
                "started_at": _now(),
                "ended_at": None,
                "from_epoch": None,
                "to_epoch": None,
                "device": hardware.device_names[0],
                "torch": current.environment["torch"],
            }
        )
        config.save(settings, paths.config)
        record.write_atomic(paths.overrides, yaml.safe_dump(list(overrides)))
        _clear(paths, plan.world_size)
        record.write(paths.record, current)

        job = RankJob(
            run_dir=str(root),
            prepared=prepared,
            plan=plan,
            launched_at=begun,
            local_world_size=plan.world_size,
            host=LOOPBACK,
            resume=resume,
        )
        register_loopback()
        with quietly() as folder:
            agent = Agent(job, folder)
            stall_s = settings.launch.stall_timeout_s
            seen = watch(agent, paths, plan.world_size, stall_s, interrupts, report)
        status, error = judge(seen, plan.world_size, agent.error)
        return _conclude(paths, status, error, plan.world_size, hardware, time.time() - begun)


def _usable(paths: RunPaths) -> Record | None:
    try:
        return record.read_if_there(paths.record)
    except record.RecordError:
        return None  # a half-written record is not a completed one


def _conclude(
    paths: RunPaths, status: str, error: Any, ranks: int, hardware: Hardware, seconds: float
) -> Record:
    """Write the ending into the record, which rank 0 has kept until now, and tidy up."""
    final = record.read(paths.record)
    final.status, final.error = status, error
    final.effective["native_bf16"] = hardware.native_bf16
    segment = final.segments[-1]
    segment["ended_at"] = _now()
    segment["wall_s"] = seconds
    segment["to_epoch"] = len(final.epochs)
    final.metrics["wall_time_s"] = sum(s.get("wall_s") or 0.0 for s in final.segments)
    record.write(paths.record, final)
    _clear(paths, ranks)
    if status == record.COMPLETED:
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
