"""What SLURM says about jobs and partitions, by its own commands. No torch here.

SLURM's states never become results: they only say whether a job can still write its record.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

COMMAND_TIMEOUT_S = 30.0

# A job in one of these does not run again by itself.
OVER = frozenset(
    {
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "BOOT_FAIL",
        "DEADLINE",
        "PREEMPTED",
        "REVOKED",
    }
)


@dataclass(frozen=True)
class Job:
    """A job as SLURM sees it now."""

    id: str  # as a person writes it: 12, or 12_3 for a member of an array
    raw_id: str  # as the job itself sees it in SLURM_JOB_ID
    state: str
    nodes: str
    reason: str  # why it waits

    @property
    def over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in OVER


class Unanswered(Exception):
    """SLURM could not be asked; the message says what was tried."""


def _ask(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unanswered(f"{command[0]}: {error}") from error
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise Unanswered(words[-1] if words else f"{command[0]}: exit code {done.returncode}")
    return done.stdout


def _jobs(lines: str) -> dict[str, Job]:
    found = {}
    for line in lines.splitlines():
        parts = line.split("|")
        if len(parts) != 5 or "." in parts[0]:  # 12.batch: a step
            continue
        identity, raw, state, nodes, reason = parts
        job = Job(identity, raw, state.split(" ")[0], nodes, reason)  # "CANCELLED by 1000"
        found[identity] = found[raw] = job
    return found


def ask(ids: Iterable[str]) -> tuple[dict[str, Job], str | None]:
    """The jobs among `ids` that SLURM knows, by either form of their id, and what it did not say.

    Jobs that squeue has forgotten are looked up with sacct. Raises Unanswered when squeue,
    which knows every job that waits or runs, cannot be asked.
    """
    wanted = set(ids)
    listed = _jobs(
        _ask("squeue", "-u", str(os.geteuid()), "-h", "-r", "-t", "all", "-o", "%i|%A|%T|%N|%r")
    )
    forgotten = sorted(wanted - set(listed))
    silence = None
    if forgotten:
        try:
            columns = "JobID,JobIDRaw,State,NodeList,Reason"
            listed |= _jobs(
                _ask("sacct", "-X", "-n", "-P", "-o", columns, "-j", ",".join(forgotten))
            )
        except Unanswered as error:
            silence = str(error)
    return {identity: job for identity, job in listed.items() if identity in wanted}, silence


def cancel(ids: Iterable[str]) -> None:
    """Cancel jobs; those that are over already do not matter."""
    subprocess.run(["scancel", *ids], capture_output=True, timeout=COMMAND_TIMEOUT_S, check=False)


def array_of(identity: str) -> str:
    """The id that means a job's whole array: `12` for `12_3`."""
    return identity.split("_")[0]


def gpus_per_node(partition: str | None) -> int:
    """The most GPUs that a node of `partition` (null: any) offers; 0 where none or unknown."""
    only = ["-p", partition] if partition else []
    try:
        printed = _ask("sinfo", "-h", "-o", "%G", *only)
    except Unanswered:
        return 0
    # gpu:2, gpu:h200:8(S:0-1), shard:4,gpu:a100:4
    counts = re.findall(r"(?:^|,)gpu:(?:[^,:()]+:)?(\d+)", printed, re.MULTILINE)
    return max((int(count) for count in counts), default=0)


def own_id() -> str | None:
    """The id of the job that this process runs in, as SLURM_JOB_ID has it."""
    return os.environ.get("SLURM_JOB_ID")


def may_go_on() -> bool:
    """Whether SLURM still counts this process's own job as running: not cancelled, not requeued.

    False too when it does not say: a cancelled job must not come back.
    """
    identity = own_id()
    if identity is None:
        return False
    try:
        job = ask([identity])[0].get(identity)
    except Unanswered:
        return False
    return job is not None and job.state == "RUNNING"


@contextmanager
def outside_of_any_job() -> Iterator[None]:
    """Hide the job that this process runs in: its variables would shape the jobs it submits."""
    leaking = [
        name
        for name in os.environ
        if (name.startswith(("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_")) and name != "SLURM_CONF")
        or name
        in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
        or (name in ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL") and own_id() is not None)
    ]
    kept = {name: os.environ.pop(name) for name in leaking}
    try:
        yield
    finally:
        os.environ.update(kept)
