"""Every cell of a sweep, from its records: `python -m amp_sweep.status outputs/NAME`."""

from amp_sweep import ctrl_c, streams

if __name__ == "__main__":
    ctrl_c.ends_this_process()  # before the imports, which take long
    streams.open_missing()

import argparse
import datetime
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from amp_sweep import labels, record, slurm
from amp_sweep.explain.lookup import printable
from amp_sweep.lock import describe, is_alive, read_owner
from amp_sweep.messages import time_left_s
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record

STYLES = {
    record.COMPLETED: "green",
    record.RUNNING: "cyan",
    record.PENDING: "dim",
    record.INTERRUPTED: "yellow",
}

Jobs = dict[str, slurm.Job]


def _position(paths: RunPaths, found: Record) -> str:
    values = record.read_object(paths.progress) or {}
    try:
        if values["epoch"] >= values["epochs"]:
            return f"trained: {values['doing']}"  # the last weights are stored, or probes run
        words = f"epoch {values['epoch'] + 1}/{values['epochs']}, step {values['step']}"
        started = datetime.datetime.fromisoformat(found.segments[-1]["started_at"])
        spent_s = (datetime.datetime.now(datetime.UTC) - started).total_seconds()
        left_s = time_left_s(values, spent_s)
        if left_s is not None:
            words += f", about {record.duration(max(1.0, left_s))} left"
    except (KeyError, TypeError, ValueError, IndexError, ArithmeticError):
        return "starting"
    return words


def _stopped_at(found: Record) -> str:
    """` at epoch 3 of 10`: the epoch that a stopped run was in; empty where it is not known."""
    epochs = found.config.get("epochs")
    if type(epochs) is not int or epochs < 1:
        return ""
    return f" at epoch {min(len(found.epochs) + 1, epochs)} of {epochs}"


def _job_words(job: slurm.Job) -> str:
    where = f" on {job.nodes}" if job.nodes else ""
    reason = f", {job.reason}" if job.state == "PENDING" and job.reason != "None" else ""
    return f"job {job.id} {job.state.lower()}{where}{reason}"


def status_and_detail(paths: RunPaths, found: Record, jobs: Jobs | None = None) -> tuple[str, str]:
    """The status now and a few words about it: a `running` record of a dead owner is not.

    `jobs` is what SLURM said about the jobs of the sweep; None where it was not asked.
    """
    identity = (record.read_object(paths.job) or {}).get("job_id")
    job = (jobs or {}).get(str(identity))
    if found.status == record.RUNNING:
        owner = read_owner(paths.lock)
        its_job = (jobs or {}).get(str((owner or {}).get("job_id")))
        alive = its_job is None or not its_job.over  # SLURM knows sooner than the heartbeat
        if owner is not None and alive and is_alive(paths.lock, owner):
            where = f"job {its_job.id} on {owner.get('host')}" if its_job else describe(owner)
            return record.RUNNING, f"{_position(paths, found)}; {where}"
    ended = found.status in (record.COMPLETED, record.DIVERGED, record.INVALID)
    if job is not None and not job.over and not ended:
        return record.PENDING, _job_words(job)  # submitted, or back in the queue
    if found.status == record.RUNNING:
        gone = f"its job is over ({job.state.lower()})" if job else "its process is gone"
        return record.INTERRUPTED, f"{gone}{_stopped_at(found)}; the same command resumes it"
    if found.status == record.INTERRUPTED:
        return found.status, f"interrupted{_stopped_at(found)}; the same command resumes it"
    if found.status == record.PENDING and identity:
        if job is not None:
            return record.PENDING, f"{_job_words(job)}; it never began with the cell"
        known = "which SLURM does not know" if jobs is not None else ""
        return record.PENDING, f"job {identity} {known}".strip()
    if found.status == record.COMPLETED:
        accuracy = found.metrics.get("test_accuracy")
        seconds = found.metrics.get("train_time_s")
        words = f"accuracy {accuracy:.4f}" if isinstance(accuracy, float) else ""
        if isinstance(seconds, int | float):
            words += f", trained {record.duration(seconds)}"
        return found.status, words
    message = (found.error or {}).get("message")
    return found.status, str(message).splitlines()[0] if message else ""


def _ask_slurm(files: Sequence[Path]) -> tuple[Jobs | None, str | None]:
    """What SLURM says about the jobs of these runs, and what could not be asked."""
    wanted = set()
    for file in files:
        paths = RunPaths(file.parent)
        for said in (record.read_object(paths.job), read_owner(paths.lock)):
            if said and said.get("job_id"):
                wanted.add(str(said["job_id"]))
    if not wanted:
        return None, None
    try:
        jobs, silence = slurm.ask(wanted)
    except slurm.Unanswered as error:
        return None, f"jobs are as their records say; SLURM was not asked: {error}"
    if silence:
        return jobs, f"jobs that squeue has forgotten were not looked up: {silence}"
    return jobs, None


@ctrl_c.ends_the_command()
def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; 0 when every cell is completed."""
    parser = argparse.ArgumentParser(
        prog="amp-sweep-status",
        description="Each cell of a sweep: pending, running, done, failed.",
        epilog="exit status: 0 every cell is completed, 1 not, 2 wrong usage",
    )
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="outputs/NAME")
    options = parser.parse_args(arguments)
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    counts: Counter[str] = Counter()
    unusable = 0

    def fail(words: str) -> None:
        nonlocal unusable
        unusable += 1
        errors.print(Text(printable(words)), soft_wrap=True)

    for sweep in options.sweeps:
        try:
            files = record.find(sweep)
        except OSError as error:  # a name that is too long
            fail(f"error: {error}")
            continue
        if not files:
            fail(f"error: no runs in {sweep}")
            continue
        jobs, silence = _ask_slurm(files)
        if silence:
            errors.print(Text(printable(silence)), soft_wrap=True, style="yellow")
        title = Text(printable(str(sweep)), style="table.title")
        table = Table("cell", "seed", "status", "", title=title, title_justify="left")
        shown: list[tuple[Record, str, str]] = []
        for file in files:
            try:
                found = record.read(file)
                status, detail = status_and_detail(RunPaths(file.parent), found, jobs)
            except record.RecordError as error:
                fail(str(error))
                continue
            except (TypeError, ValueError, LookupError, ArithmeticError, OSError) as error:
                fail(f"{file.parent}: damaged: {error}")  # its lock, or what SLURM was asked about
                continue
            counts[status] += 1
            shown.append((found, status, detail))
        apart = labels.told_apart([(found.overrides, found.config) for found, *_ in shown])
        for (found, status, detail), told in zip(shown, apart, strict=True):
            cell = found.cell
            name = f"{cell.get('parallel')} x {cell.get('precision')}"
            table.add_row(
                Text(printable(f"{name}, {told}" if told else name)),
                Text(printable(str(cell.get("seed")))),
                Text(status, style=STYLES.get(status, "red")),
                Text(printable(detail)),
            )
        console.print(table)
    if counts:
        console.print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 0 if set(counts) == {record.COMPLETED} and not unusable else 1


if __name__ == "__main__":
    sys.exit(main())
