"""Figures of a record as text, and for those that are null the reason."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from amp_sweep.record import Record, duration


class Story:
    """Looks up figures of one record, and for those that are null the reason in its notes."""

    def __init__(self, run: Record) -> None:
        self.run = run

    def value(self, name: str) -> Any:
        """A figure; None where there is none."""
        return self.run.metrics.get(name)

    def reason(self, *names: str) -> str:
        """Why a figure is null, from the notes."""
        for note in self.run.notes:
            named, colon, why = note.partition(":")
            if colon and any(name in named.replace(",", " ").split() for name in names):
                return why.strip()
        return "not in the record"

    def figure(self, name: str, form: str = ",.4g", unit: str = "") -> str:
        """A figure, or figures per device, as text; else why it is not known."""
        value = self.value(name)
        if value is None:
            return f"not known: {self.reason(name)}"
        return f"{number(value, form)}{unit}"


def number(value: Any, form: str) -> str:
    """A number, or numbers per device, in the form `form`; anything else as it is."""
    if isinstance(value, list):
        return ", ".join(number(item, form) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return format(value, form)
    return str(value)


def seconds(value: Any) -> str:
    """A duration as a person says it."""
    return duration(value) if isinstance(value, int | float) else "not known"


def rows(pairs: Sequence[tuple[str, Any]]) -> Table:
    """Names and values in two columns; what is None or empty is left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in pairs:
        if value is not None and value != "":
            table.add_row(Text(name), Text(str(value)))
    return table


def section(title: str, *content: RenderableType) -> RenderableType:
    """A heading and what stands under it."""
    return Group(Text(title, style="bold"), Padding(Group(*content), (0, 0, 1, 2)))


def printable(value: Any) -> Any:
    """The same value with only printable characters and line ends in its texts."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() or c == "\n" else " " for c in value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    return [printable(item) for item in value] if isinstance(value, list) else value
