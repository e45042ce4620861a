"""Pictures of a comparison, as PNG and SVG.

    drawn = pictures.draw(comparison, frame)      # matplotlib figures, with their words
    pictures.write(comparison, frame, out)        # the same into files

They are drawn without `pyplot`: no window, no global state, no figure that stays open.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from amp_sweep import record
from analysis import texts
from analysis.comparison import Comparison, Table
from analysis.markup import markdown_escape
from analysis.pictures import bars, cells, curves, matrix, scatter, stacks, style
from analysis.pictures.cells import Drawn

# Folder of the files inside the one that is given, and the file with their words.
FOLDER, WORDS = "pictures", "captions.md"

# More tables than these are not drawn: nobody looks at them, and they take seconds each.
MOST_TABLES = 6
DPI = 144


@dataclass(frozen=True)
class Picture:
    """One drawn picture; `alt` says in words what it shows, figures included."""

    name: str  # of its files, without what tells PNG from SVG
    table: int  # whose, from 0
    title: str
    alt: str
    figure: Figure

    @property
    def wide(self) -> int:
        """Width in pixels of a web page (96 to the inch)."""
        return round(96 * float(self.figure.get_size_inches()[0]))

    @property
    def high(self) -> int:
        """Height in pixels of a web page."""
        return round(96 * float(self.figure.get_size_inches()[1]))

    @cached_property
    def svg(self) -> str:
        """As SVG; the same figures always give the same text."""
        with style.settings():
            held = io.StringIO()
            self.figure.savefig(held, format="svg", metadata={"Date": None, "Creator": None})
            return held.getvalue()

    def png(self) -> bytes:
        """As PNG."""
        with style.settings():
            held = io.BytesIO()
            self.figure.savefig(held, format="png", dpi=DPI, metadata={"Software": None})
            return held.getvalue()


@dataclass(frozen=True)
class Pictures:
    """All pictures of a comparison, and in words what could not be drawn."""

    pictures: tuple[Picture, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Kind:
    """A picture that a table may have: how it is made, and what its words tell of each cell."""

    name: str
    title: str
    make: Callable[[Table, Sequence[Drawn], str], Figure | None]
    tells: tuple[str, ...]  # columns
    missing: str = ""  # why there may be none


TEXT: dict[str, Callable[[float], str]] = {
    "images_per_s": lambda value: f"{texts.quantity(value)} images/s",
    "train_time_s": record.duration,
    "test_accuracy": "accuracy {:.4f}".format,
    "energy_j": lambda value: f"{texts.quantity(value / 1000)} kJ",
    "step_ms_p50": lambda value: f"{texts.quantity(value)} ms",
    **dict.fromkeys(scatter.MEMORY, lambda value: f"{texts.quantity(value)} MiB"),
}


def _kinds(table: Table) -> Iterator[Kind]:
    """What may be drawn of a table, in the order in which one looks at it."""
    yield Kind("throughput", "images per second", bars.throughput, ("images_per_s",))
    yield Kind(
        "pareto",
        "speed, memory and accuracy",
        scatter.pareto,
        ("images_per_s", table.memory, "test_accuracy"),
        "fewer than two cells have a speed and a peak memory",
    )
    for metric in _heat_maps(table):
        yield Kind(
            f"heatmap-{metric.name}",
            f"heat map, {metric.title}",
            partial(_heat_map, metric),
            (metric.column,),
            f"no run recorded {metric.column}",
        )
    yield Kind(
        "memory",
        "memory by what it is for",
        stacks.memory,
        tuple(stacks.MEMORY),
        f"no run recorded {', '.join(stacks.MEMORY)}",
    )
    yield Kind(
        "time",
        "where the time goes",
        stacks.time,
        tuple(stacks.TIME),
        f"no run recorded {', '.join(stacks.TIME)}",
    )
    yield Kind(
        "training",
        "training curves",
        curves.training,
        ("test_accuracy",),
        "no run has finished an epoch",
    )
    yield Kind(
        "time-to-accuracy",
        "accuracy over training time",
        curves.time_to_accuracy,
        ("train_time_s", "test_accuracy"),
        "no run has finished an epoch",
    )
    yield Kind(
        "step-times",
        "milliseconds per training step",
        bars.step_times,
        bars.STEPS,
        f"no run recorded {', '.join(bars.STEPS)}",
    )


def _heat_maps(table: Table) -> tuple[matrix.Metric, ...]:
    memory = scatter.MEMORY[table.memory]
    return (
        matrix.Metric("speed", "images_per_s", "images per second", texts.quantity, True),
        matrix.Metric("time", "train_time_s", "training time", record.duration, False),
        matrix.Metric("memory", table.memory, memory, texts.quantity, False),
        matrix.Metric("accuracy", "test_accuracy", "test accuracy", "{:.4f}".format, True),
        matrix.Metric("energy", "energy_j", "energy, J", texts.quantity, False),
    )


def _heat_map(
    metric: matrix.Metric, table: Table, drawn: Sequence[Drawn], footer: str
) -> Figure | None:
    return matrix.heat_map(table, drawn, metric, footer)


def draw(comparison: Comparison, frame: pd.DataFrame) -> Pictures:
    """Draw everything that the runs have figures for. `frame` is what was compared."""
    found: list[Picture] = []
    left_out: list[str] = []
    tables = list(zip(comparison.tables, cells.of_tables(comparison, frame), strict=True))
    with style.settings():
        for index, (table, drawn) in enumerate(tables[:MOST_TABLES]):
            suffix = f"-{index + 1}" if len(tables) > 1 else ""
            footer = f"{table.settings}; {table.hardware}"
            kinds = list(_kinds(table))
            columns = dict.fromkeys(name for kind in kinds for name in kind.tells)
            left_out += [words for each in drawn for words in each.not_drawn(columns)]
            for kind in kinds:
                figure, why = _made(kind, table, drawn, footer)
                if figure is None:
                    left_out.append(f"{table.title}, {kind.title}: {why}")
                else:
                    title = f"{table.title}: {kind.title}"
                    alt = f"{title}. {_told(drawn, kind.tells)}"
                    found.append(Picture(f"{kind.name}{suffix}", index, title, alt, figure))
    if len(tables) > MOST_TABLES:
        left_out.append(f"{len(tables) - MOST_TABLES} further tables are not drawn")
    return Pictures(tuple(found), tuple(left_out))


def _made(
    kind: Kind, table: Table, drawn: Sequence[Drawn], footer: str
) -> tuple[Figure | None, str]:
    """One picture, or why there is none: one that fails costs neither the others nor the report."""
    try:
        return kind.make(table, drawn, footer), kind.missing
    except (ArithmeticError, ValueError) as error:  # figures that matplotlib cannot place
        return None, f"could not be drawn: {error}"


def _told(drawn: Sequence[Drawn], columns: Sequence[str]) -> str:
    """Every cell with its figures (means) or its state, for those who do not see them."""
    told = []
    for each in drawn:
        means = {name: each.mean(name) for name in columns}
        words = [_text(name)(mean) for name, mean in means.items() if mean is not None]
        if each.cell.runs:
            told.append(f"{each.name}: {each.state or ', '.join(words) or texts.UNKNOWN}")
    return "; ".join(told) + "."


def _text(column: str) -> Callable[[float], str]:
    if column in stacks.MEMORY:
        return lambda value: f"{stacks.MEMORY[column]} {texts.quantity(value)} MiB"
    if column in stacks.TIME:
        return lambda value: f"{stacks.TIME[column]} {value:.0%}"
    return TEXT.get(column, texts.quantity)


def write(comparison: Comparison, frame: pd.DataFrame, out: Path) -> list[Path]:
    """Draw all, and write PNG, SVG and a page with their words into `out`/pictures.

    Returns the files. Raises OSError where they cannot be written.
    """
    return save(draw(comparison, frame), out)


def save(drawn: Pictures, out: Path) -> list[Path]:
    """Write what was drawn; as `write`."""
    folder = out / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    words = ["# Pictures", ""]
    for picture in drawn.pictures:
        for suffix, content in (("png", picture.png()), ("svg", picture.svg.encode())):
            path = folder / f"{picture.name}.{suffix}"
            path.write_bytes(content)
            files.append(path)
        words += [f"- `{picture.name}`: {markdown_escape(picture.alt)}"]
    words += [f"- not drawn: {markdown_escape(text)}" for text in drawn.left_out]
    record.write_atomic(folder / WORDS, "\n".join(words) + "\n")
    return [*files, folder / WORDS]
