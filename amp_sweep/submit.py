"""Submit the cells of a sweep as jobs: what they need, and which are queued already."""

import json
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from amp_sweep import config, launch, record, slurm, source
from amp_sweep.cells import NOT_COMPLETED, OK, Cell
from amp_sweep.follow import POLL_S, Submitted, content_of, follow
from amp_sweep.job import CellJob
from amp_sweep.lock import read_owner
from amp_sweep.paths import RunPaths
from amp_sweep.screen import Screen

# A job that is ending gets this long until it counts as one that still runs.
SETTLE_S = 60.0

# Takes the jobs and what they need; their ids, in the same order.
Send = Callable[[list[CellJob], dict[str, Any]], list[str]]


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


def job_of(paths: RunPaths) -> str | None:
    """The id of the job that a cell was last submitted as."""
    said = record.read_object(paths.job)
    return str(said["job_id"]) if said and "job_id" in said else None


def _make_job(cell: Cell, code: dict[str, str], nodes: int) -> CellJob:
    return CellJob(
        settings=config.to_dict(cell.config),
        overrides=cell.overrides,
        folder=str(Path.cwd()),
        root=str(cell.root),
        code=code,
        nodes=nodes,
    )


def _settled(ids: set[str], screen: Screen) -> dict[str, slurm.Job]:
    """The jobs among `ids`, once those that are ending have ended, or wait again.

    SLURM calls both a cancelled job and one that is requeued "completing" for a while. Raises
    slurm.Unanswered.
    """
    patience = time.monotonic() + SETTLE_S
    told = False
    while True:
        known, _ = slurm.ask(ids)
        ending = sorted({job.id for job in known.values() if job.state == "COMPLETING"})
        if not ending or time.monotonic() > patience:
            return known
        if not told:
            screen.say(f"waiting for job {', '.join(ending)} to end")
            told = True
        time.sleep(POLL_S)


def _queued(cells: list[Cell], screen: Screen) -> dict[Path, str]:
    """Cells whose job of an earlier submission has not ended; locks of ended jobs are removed."""
    ids = {cell.root: job_of(RunPaths(cell.root)) for cell in cells}
    owners = {cell.root: read_owner(RunPaths(cell.root).lock) for cell in cells}
    asked = {job for job in ids.values() if job}
    asked |= {str(owner["job_id"]) for owner in owners.values() if owner and owner.get("job_id")}
    if not asked:
        return {}
    try:
        known = _settled(asked, screen)
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
    before = {cell.root: content_of(RunPaths(cell.root).record) for cell in cells}
    queued = _queued(cells, screen)
    new = [cell for cell in cells if cell.root not in queued]
    for cell in cells:
        if cell.root in queued:
            screen.say(f"already submitted: {cell.label} (job {queued[cell.root]})")
    jobs = dict(queued)
    if new:
        own = sorted({name for cell in new for name in source.own_callables(cell.config)})
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
    return follow(waiting, screen, interrupts, ways)


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
