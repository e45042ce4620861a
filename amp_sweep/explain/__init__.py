"""The whole story of a run, from its record alone: `python -m amp_sweep.explain RUN_DIR`."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from amp_sweep import ctrl_c, record
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
    yield _part("Asked for", lambda: [rows(setting.asked(run))])
    if run.effective:
        yield _part("What ran", lambda: [rows(setting.ran(run))])
    if run.metrics:
        yield _part("Time", lambda: [rows(outcome.times(found))])
        yield _part("Where the time went", lambda: [outcome.shares(found)])
        yield _part("Result", lambda: [rows(outcome.result(found))])
        yield _part("Memory", lambda: outcome.memory(found))
        yield _part("Energy and cost", lambda: [rows(outcome.energy(found))])
        yield _part("Work", lambda: [rows(outcome.work(found))])
        yield _part("Mixed precision", lambda: [rows(outcome.precision(found))])
        yield _part("Communication", lambda: [rows(outcome.communication(found))])
    if run.environment:
        yield _part("Environment", lambda: [rows(setting.environment(run))])
    if len(run.segments) > 1:
        yield _part("Segments", lambda: [rows(setting.segments(run))])
    if run.notes:
        yield section("Notes", *(Text(f"- {note}") for note in run.notes))
    if run.error:
        yield _part("Error", lambda: setting.error(dict(run.error or {})))


def _part(title: str, make: Callable[[], Iterable[RenderableType]]) -> RenderableType:
    """A section, or the word that its part of the record holds what no run has written."""
    try:
        return section(title, *make())
    except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
        return section(title, Text("this part of the record is damaged"))


def _not_begun(run: Record) -> bool:
    return run.status in (record.PENDING, record.RUNNING)


def _evidence(run: Record) -> str:
    return str(run.metrics.get("diagnosis_evidence") or "no evidence in the record")


@ctrl_c.ends_the_command()
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
