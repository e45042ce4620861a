"""The whole story of a run, from its record alone: `python -m amp_sweep.explain RUN_DIR`."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from amp_sweep import record
from amp_sweep.explain import outcome, setting
from amp_sweep.explain.lookup import Story, printable, rows, section
from amp_sweep.record import Record

STYLES = {record.COMPLETED: "green", record.DIVERGED: "yellow", record.INTERRUPTED: "yellow"}


def story(run: Record, folder: Path | None = None) -> Iterator[RenderableType]:
    """The parts of a run's story, in the order in which one would ask."""
    # Records come from other machines: no control sequence of theirs reaches a terminal.
    run = Record(**{name: printable(value) for name, value in vars(run).items()})
    found = Story(run)
    title = Text(f"{run.cell.get('parallel')} x {run.cell.get('precision')}", style="bold")
    title.append(f", seed {run.cell.get('seed')}: ", style="not bold")
    title.append(run.status, style=STYLES.get(run.status, "dim" if _not_begun(run) else "red"))
    yield title
    if folder is not None:
        yield Text(str(folder), style="dim")
    yield Text()
    if run.metrics.get("diagnosis"):
        yield section("In a word", Text(f"{run.metrics['diagnosis']}: {_evidence(run)}"))
    yield section("Asked for", rows(setting.asked(run)))
    if run.effective:
        yield section("What ran", rows(setting.ran(run)))
    if run.metrics:
        yield section("Time", rows(outcome.times(found)))
        yield section("Where the time went", outcome.shares(found))
        yield section("Result", rows(outcome.result(found)))
        yield section("Memory", *outcome.memory(found))
        yield section("Energy and cost", rows(outcome.energy(found)))
        yield section("Work", rows(outcome.work(found)))
        yield section("Mixed precision", rows(outcome.precision(found)))
        yield section("Communication", rows(outcome.communication(found)))
    if run.environment:
        yield section("Environment", rows(setting.environment(run)))
    if len(run.segments) > 1:
        yield section("Segments", rows(setting.segments(run)))
    if run.notes:
        yield section("Notes", *(Text(f"- {note}") for note in run.notes))
    if run.error:
        yield section("Error", *setting.error(run.error))


def _not_begun(run: Record) -> bool:
    return run.status in (record.PENDING, record.RUNNING)


def _evidence(run: Record) -> str:
    return str(run.metrics.get("diagnosis_evidence") or "no evidence in the record")


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; 1 where a record cannot be read."""
    parser = argparse.ArgumentParser(
        prog="amp-sweep-explain",
        description="What was asked, what ran, what it cost, and why.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="or a sweep's folder")
    options = parser.parse_args(arguments)
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    code = 0
    for folder in options.runs:
        files = record.find(folder)
        if not files:
            errors.print(Text(f"error: no run in {folder}"), soft_wrap=True)
            code = 1
        for file in files:
            try:
                run = record.read(file)
            except record.RecordError as error:
                errors.print(Text(f"error: {error}"), soft_wrap=True)
                code = 1
                continue
            for part in story(run, file.parent):
                console.print(part)
    return code
