"""The parts of a run's story in their order, and the command that prints them."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

from amp_sweep import record
from amp_sweep.explain import outcome, setting
from amp_sweep.explain.lookup import Story, printable, rows, section
from amp_sweep.record import Record

STYLES = {record.COMPLETED: "green", record.DIVERGED: "yellow", record.INTERRUPTED: "yellow"}


def story(
    run: Record, folder: Path | None = None, damaged: list[str] | None = None
) -> Iterator[RenderableType]:
    """The parts of a run's story, in the order in which one would ask.

    The titles of those whose figures no run has written are added to `damaged`.
    """
    damaged = [] if damaged is None else damaged

    def part(title: str, make: Callable[[], Iterable[RenderableType]]) -> RenderableType:
        try:
            return section(title, *make())
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
            damaged.append(title)
            return section(title, Text("this part of the record is damaged"))

    # Records come from other machines: no control sequence of theirs reaches a terminal.
    run = Record(**{name: printable(value) for name, value in vars(run).items()})
    found = Story(run)
    title = Text(f"{run.cell.get('parallel')} x {run.cell.get('precision')}", style="bold")
    title.append(f", seed {run.cell.get('seed')}: ", style="not bold")
    title.append(run.status, style=STYLES.get(run.status, "dim" if _not_begun(run) else "red"))
    yield title
    if folder is not None:
        yield Text(printable(str(folder)), style="dim")
    yield Text()
    if run.metrics.get("diagnosis"):
        yield section("In a word", Text(f"{run.metrics['diagnosis']}: {_evidence(run)}"))
    yield part("Asked for", lambda: [rows(setting.asked(run))])
    if run.effective:
        yield part("What ran", lambda: [rows(setting.ran(run))])
    if run.metrics:
        yield part("Time", lambda: [rows(outcome.times(found))])
        yield part("Where the time went", lambda: [outcome.shares(found)])
        yield part("Result", lambda: [rows(outcome.result(found))])
        yield part("Memory", lambda: outcome.memory(found))
        yield part("Energy and cost", lambda: [rows(outcome.energy(found))])
        yield part("Work", lambda: [rows(outcome.work(found))])
        yield part("Mixed precision", lambda: [rows(outcome.precision(found))])
        yield part("Communication", lambda: [rows(outcome.communication(found))])
    if run.environment:
        yield part("Environment", lambda: [rows(setting.environment(run))])
    if len(run.segments) > 1:
        yield part("Segments", lambda: [rows(setting.segments(run))])
    if run.notes:
        yield section("Notes", *(Text(f"- {note}") for note in run.notes))
    if run.error:
        yield part("Error", lambda: setting.error(dict(run.error or {})))


def _not_begun(run: Record) -> bool:
    return run.status in (record.PENDING, record.RUNNING)


def _evidence(run: Record) -> str:
    return str(run.metrics.get("diagnosis_evidence") or "no evidence in the record")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the story of every run; 1 where a record, or a part of one, cannot be read."""
    parser = argparse.ArgumentParser(
        prog="amp-sweep-explain",
        description="What was asked, what ran, what it cost, and why.",
        epilog="exit status: 0 every record was read, 1 not, 2 wrong usage",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="or a sweep's folder")
    options = parser.parse_args(arguments)
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    failed = False

    def fail(words: str) -> None:
        nonlocal failed
        failed = True
        errors.print(Text(printable(f"error: {words}")), soft_wrap=True)

    for folder in options.runs:
        try:
            files = record.find(folder)
        except OSError as error:  # a name that is too long
            fail(str(error))
            continue
        if not files:
            fail(f"no run in {folder}")
        for file in files:
            try:
                run = record.read(file)
            except record.RecordError as error:
                fail(str(error))
                continue
            damaged: list[str] = []
            for part in story(run, file.parent, damaged):
                console.print(part)
            if damaged:
                fail(f"{file}: damaged: {', '.join(damaged)}")
    return 1 if failed else 0
