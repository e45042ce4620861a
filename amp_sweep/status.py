"""Every cell of a sweep, from its records: `python -m amp_sweep.status outputs/NAME`."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from amp_sweep import record
from amp_sweep.lock import describe, is_alive, read_owner
from amp_sweep.paths import RunPaths
from amp_sweep.record import Record

STYLES = {
    record.COMPLETED: "green",
    record.RUNNING: "cyan",
    record.PENDING: "dim",
    record.INTERRUPTED: "yellow",
}


def _position(paths: RunPaths) -> str:
    try:
        values = json.loads(paths.progress.read_text(encoding="utf-8"))
        return f"epoch {values['epoch'] + 1}/{values['epochs']}, step {values['step']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "starting"


def status_and_detail(paths: RunPaths, found: Record) -> tuple[str, str]:
    """The status now and a few words about it: a `running` record of a dead owner is not."""
    if found.status == record.RUNNING:
        owner = read_owner(paths.lock)
        if owner is not None and is_alive(paths.lock, owner):
            return record.RUNNING, f"{_position(paths)}; {describe(owner)}"
        return record.INTERRUPTED, "its process is gone; the same command resumes it"
    if found.status == record.COMPLETED:
        accuracy = found.metrics.get("test_accuracy")
        seconds = found.metrics.get("train_time_s")
        words = f"accuracy {accuracy:.4f}" if isinstance(accuracy, float) else ""
        if isinstance(seconds, int | float):
            words += f", trained {record.duration(seconds)}"
        return found.status, words
    message = (found.error or {}).get("message")
    return found.status, str(message).splitlines()[0] if message else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; 0 when every cell is completed."""
    parser = argparse.ArgumentParser(
        prog="amp-sweep-status",
        description="Each cell of a sweep: pending, running, done, failed.",
    )
    parser.add_argument("sweeps", nargs="+", type=Path, metavar="outputs/NAME")
    options = parser.parse_args(arguments)
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    counts: Counter[str] = Counter()
    unusable = 0
    for sweep in options.sweeps:
        files = record.find(sweep)
        if not files:
            errors.print(Text(f"error: no runs in {sweep}"), soft_wrap=True)
            unusable += 1
            continue
        table = Table("cell", "seed", "status", "", title=str(sweep), title_justify="left")
        for file in files:
            try:
                found = record.read(file)
            except record.RecordError as error:
                errors.print(Text(str(error)), soft_wrap=True)
                unusable += 1
                continue
            status, detail = status_and_detail(RunPaths(file.parent), found)
            counts[status] += 1
            cell = found.cell
            table.add_row(
                Text(f"{cell.get('parallel')} x {cell.get('precision')}"),
                Text(str(cell.get("seed"))),
                Text(status, style=STYLES.get(status, "red")),
                Text(detail),
            )
        console.print(table)
    if counts:
        console.print(", ".join(f"{count} {status}" for status, count in counts.items()))
    return 0 if set(counts) == {record.COMPLETED} and not unusable else 1


if __name__ == "__main__":
    sys.exit(main())
