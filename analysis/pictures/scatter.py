"""Speed against memory, with the accuracy at each point."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from analysis import answer, texts
from analysis.comparison import Comparison, Table
from analysis.pictures import style
from analysis.pictures.cells import Drawn, disturbed
from analysis.pictures.rows import WIDE, precision_colours

HIGH = 3.6
MARK = 0.11  # side of a point's box

# Where a label may stand around its point: directions, the best first, and distances in inches.
DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
DISTANCES = (0.06, 0.14, 0.24, 0.36, 0.5, 0.66, 0.84, 1.04, 1.3, 1.6, 2.0, 2.5)

MEMORY = {
    "peak_allocated_mib": "peak memory of the fullest device, MiB",
    "peak_rss_mib": "peak memory of the largest process, MiB",
    "peak_rss_above_mib": "peak memory of the largest process above its start, MiB",
}


@dataclass(frozen=True)
class Point:
    """A cell in the plane: means over its runs."""

    drawn: Drawn
    speed: float  # images per second
    memory: float
    accuracy: float | None


@dataclass(frozen=True)
class Box:
    """A rectangle in inches, by its middle."""

    x: float
    y: float
    wide: float
    high: float

    def meets(self, other: "Box") -> bool:
        """Whether the two overlap."""
        return (
            abs(self.x - other.x) < (self.wide + other.wide) / 2
            and abs(self.y - other.y) < (self.high + other.high) / 2
        )


def pareto(table: Table, cells: Sequence[Drawn], footer: str) -> Figure | None:
    """Images per second and peak memory of each cell; None where fewer than two have both.

    Filled points are on the Pareto front of the answer. Each point bears its name and accuracy,
    or where that does not fit a number, with a list below.
    """
    points = [point for drawn in cells if (point := _point(drawn, table.memory)) is not None]
    if len(points) < 2:
        return None
    left_out = [drawn for drawn in cells if drawn.state and drawn.cell.runs]
    left = 0.55 + max(style.width(f"{point.memory:,.0f}", style.SMALL) for point in points)
    plane = Plane(points, WIDE - left - 0.2)
    names = [style.printable(_name(p)) for p in points]
    places = plane.places(names, 0.3)
    key: list[str] = []
    if places is None:
        key = [f"{number}  {name}" for number, name in enumerate(names, 1)]
        names = [str(number) for number in range(1, len(names) + 1)]
        places = plane.places(names, math.inf)
    told = (
        "Further right and further down is better. "
        f"{'The list below has' if key else 'Beside each point'} the cell and its test accuracy. "
        "Filled: on the Pareto front over speed, memory and accuracy."
    )
    told = " ".join([told, *disturbed([point.drawn for point in points])])
    if left_out:
        told += f" Not shown: {', '.join(f'{d.name} ({d.state})' for d in left_out)}."
    below = list_height(key, WIDE - 0.3)
    legends = [style.legend_height(n, WIDE - 0.4) for n in (table.precisions, table.parallels)]
    body = HIGH + 0.55 + sum(legends) + below
    title = f"{table.title}: speed, memory and accuracy"
    figure, low = style.page(WIDE, body, title, told, footer)
    write_list(figure, key, WIDE - 0.3, low + below - 0.05)
    low += below + 0.55
    axes = style.axes(figure, left, low, plane.wide, HIGH)
    axes.grid(True)
    axes.set_axisbelow(True)
    axes.set(xlim=plane.x, ylim=plane.y, xlabel="images per second")
    axes.set_ylabel(MEMORY.get(table.memory, table.memory))
    axes.xaxis.set_major_locator(style.ticks(plane.wide, 0.6))
    axes.yaxis.set_major_locator(style.ticks(HIGH, 0.5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    colours = precision_colours(table)
    marks = dict(zip(table.parallels, itertools.cycle(style.MARKERS), strict=False))
    best = answer.answer(Comparison((table,), ())).tables[0].front
    for point in points:
        cell = point.drawn.cell
        colour = colours[cell.precision][0]
        axes.plot(
            point.speed,
            point.memory,
            marks[cell.parallel],
            color=colour,
            markerfacecolor=colour if (cell.parallel, cell.precision) in best else style.PAPER,
            markersize=8,
            markeredgewidth=1.8,
            zorder=3,
        )
    for point, name, place in zip(points, names, places or [], strict=False):
        _label(axes, plane, point, name, place)
    shapes = [
        Line2D([], [], color=style.MUTED, marker=marks[name], linestyle="", ms=7, label=name)
        for name in table.parallels
    ]
    style.legend(figure, shapes, table.parallels, WIDE, low + HIGH + 0.06)
    shades = [
        Patch(facecolor=colours[name][0], edgecolor="none", label=name) for name in table.precisions
    ]
    style.legend(figure, shades, table.precisions, WIDE, low + HIGH + 0.06 + legends[1])
    return figure


def _name(point: Point) -> str:
    accuracy = texts.UNKNOWN if point.accuracy is None else f"{point.accuracy:.4f}"
    return "  ".join([point.drawn.name, accuracy, *point.drawn.cell.flaw_names])


def _point(drawn: Drawn, memory: str) -> Point | None:
    speed, peak = drawn.mean("images_per_s"), drawn.mean(memory)
    if drawn.state or speed is None or peak is None:
        return None
    return Point(drawn, speed, peak, drawn.mean("test_accuracy"))


class Plane:
    """The axes' limits, and room for labels: positions in inches from the lower left corner."""

    def __init__(self, points: Sequence[Point], wide: float) -> None:
        self.wide = wide
        self.x = _limits([point.speed for point in points])
        self.y = _limits([point.memory for point in points])
        self._marks = [
            Box(*self._inches(point.speed, point.memory), MARK, MARK) for point in points
        ]

    def _inches(self, speed: float, memory: float) -> tuple[float, float]:
        return (
            (speed - self.x[0]) / (self.x[1] - self.x[0]) * self.wide,
            (memory - self.y[0]) / (self.y[1] - self.y[0]) * HIGH,
        )

    def places(self, names: Sequence[str], farthest: float) -> list[Box] | None:
        """Where each label stands, at most so far from its point; None where one does not fit.

        No label meets a point or another label.
        """
        taken = list(self._marks)
        found: list[Box] = []
        for mark, name in zip(self._marks, names, strict=True):
            size = (style.width(name, style.SMALL) + 0.06, style.height(name, style.SMALL))
            box = next((b for b in self._around(mark, size, farthest) if _is_free(b, taken)), None)
            if box is None:
                return None
            taken.append(box)
            found.append(box)
        return found

    def _around(self, mark: Box, size: tuple[float, float], farthest: float) -> Iterator[Box]:
        for distance in DISTANCES:
            for dx, dy in DIRECTIONS if distance <= farthest else ():
                box = Box(
                    mark.x + dx * (MARK / 2 + distance + size[0] / 2),
                    mark.y + dy * (MARK / 2 + distance + size[1] / 2),
                    *size,
                )
                sides = (
                    abs(box.x - self.wide / 2) + size[0] / 2,
                    abs(box.y - HIGH / 2) + size[1] / 2,
                )
                if sides[0] <= self.wide / 2 and sides[1] <= HIGH / 2:
                    yield box

    def at(self, box: Box) -> tuple[float, float]:
        """The middle of a box in the units of the axes."""
        return (
            self.x[0] + box.x / self.wide * (self.x[1] - self.x[0]),
            self.y[0] + box.y / HIGH * (self.y[1] - self.y[0]),
        )


def _is_free(box: Box, taken: Sequence[Box]) -> bool:
    return not any(box.meets(other) for other in taken)


def _limits(values: Sequence[float]) -> tuple[float, float]:
    """From zero where the values are not all far from it, else around them."""
    low, high = min(values), max(values)
    room = 0.12 * (high - low) or 0.1 * high or 1.0
    return (0.0 if low < 0.5 * high else max(0.0, low - room)), high + room


def _label(axes: Any, plane: Plane, point: Point, name: str, place: Box) -> None:
    """A name where it was placed, and a line to its point."""
    x, y = plane.at(place)
    axes.plot([point.speed, x], [point.memory, y], color=style.MUTED, linewidth=0.5, zorder=2)
    axes.text(
        x,
        y,
        name,
        size=style.SMALL,
        ha="center",
        va="center",
        zorder=4,
        bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.8},
    )


def list_height(entries: Sequence[str], inches: float) -> float:
    """Height of `write_list`."""
    return _lines(entries, inches) * style.SMALL * style.LINE / 72 + 0.12 if entries else 0.0


def write_list(figure: Figure, entries: Sequence[str], inches: float, top: float) -> None:
    """Entries in as many columns as fit, read downwards."""
    if not entries:
        return
    lines = _lines(entries, inches)
    columns = -(-len(entries) // lines)
    step = style.SMALL * style.LINE / 72
    for index, entry in enumerate(entries):
        x = 0.14 + (index // lines) * inches / columns
        style.write(figure, x, top - (index % lines + 1) * step, entry, style.SMALL)


def _lines(entries: Sequence[str], inches: float) -> int:
    widest = max(style.width(entry, style.SMALL) for entry in entries) + 0.25
    columns = max(1, min(len(entries), int(inches / widest)))
    return -(-len(entries) // columns)
