"""Curves over epochs and over time: a panel per parallelism, a line per precision."""

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.comparison import Table
from analysis.pictures import style
from analysis.pictures.cells import Drawn, Epoch, disturbed
from analysis.pictures.rows import WIDE

ACROSS = 3  # panels side by side
PANEL, BETWEEN = 1.75, 0.2  # height of a panel, space between panels

# Above this ratio of the slowest cell to the fastest the time axis is logarithmic.
WIDE_RANGE = 12.0


@dataclass(frozen=True)
class Point:
    """The seeds of a cell at the end of one epoch."""

    epoch: int
    seconds: float  # mean of the training time so far
    mean: float
    low: float  # the lowest seed
    high: float  # and the highest


@dataclass(frozen=True)
class Curve:
    """One cell's points by epoch."""

    drawn: Drawn
    points: tuple[Point, ...]

    def at(self, name: str) -> list[float]:
        """One field of every point."""
        return [float(getattr(point, name)) for point in self.points]


def curve(drawn: Drawn, metric: str) -> Curve:
    """A cell's curve over its completed runs; over what there is where none is completed."""
    by_epoch: dict[int, list[Epoch]] = defaultdict(list)
    for each in drawn.epochs(metric):
        by_epoch[each.epoch].append(each)
    points = []
    for epoch, found in sorted(by_epoch.items()):
        values = [each.value for each in found]
        seconds = fmean(each.seconds for each in found)
        points.append(Point(epoch, seconds, fmean(values), min(values), max(values)))
    return Curve(drawn, tuple(points))


def _timed(found: Curve) -> Curve:
    """The points of a curve up to the first whose time is not known."""
    known = itertools.takewhile(lambda point: math.isfinite(point.seconds), found.points)
    return replace(found, points=tuple(known))


def training(table: Table, cells: Sequence[Drawn], footer: str) -> Figure | None:
    """Training loss and test accuracy by epoch; None where no run has finished an epoch."""
    metrics = {"train_loss": "training loss", "test_accuracy": "test accuracy"}
    found = {name: [curve(drawn, name) for drawn in cells] for name in metrics}
    found = {name: curves for name, curves in found.items() if any(c.points for c in curves)}
    if not found:
        return None
    told = " ".join([_explained(table), *disturbed(cells)])
    panels = Panels(table, f"{table.title}: training curves", told, footer, rows=len(found))
    for row, (name, curves) in enumerate(found.items()):
        for axes in panels.row(row):
            axes.set_xlabel("epoch" if row == len(found) - 1 else "")
            axes.xaxis.set_major_locator(style.whole_ticks(panels.wide))
        panels.draw(row, curves, "epoch", metrics[name])
    return panels.figure


def time_to_accuracy(table: Table, cells: Sequence[Drawn], footer: str) -> Figure | None:
    """Test accuracy over training time; None where no run has both."""
    curves = [_timed(curve(drawn, "test_accuracy")) for drawn in cells]
    ends = [c.points[-1].seconds for c in curves if c.points]
    if not ends:
        return None
    reached = [max(c.at("mean")) for c in curves if c.points and not c.drawn.state]
    told = f"Further left is better. {_explained(table)} Thin: the cells of the other panels."
    if len(reached) > 1:
        told += f" Dotted: {min(reached):.4f}, which every cell reaches; ring: where it does."
    told = " ".join([told, *disturbed(cells)])
    panels = Panels(table, f"{table.title}: time to accuracy", told, footer, rows=1)
    unit, seconds = style.time_unit(max(ends))
    for axes in panels.row(0):
        if max(ends) > WIDE_RANGE * min(ends):
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
            axes.xaxis.set_minor_formatter(lambda value, _: "")
        else:
            axes.xaxis.set_major_locator(style.ticks(panels.wide, 0.5))
        axes.set_xlabel(f"training time, {unit}")
        for each in curves:
            times = [value / seconds for value in each.at("seconds")]
            axes.plot(times, each.at("mean"), color=style.FAINT, linewidth=0.8, zorder=1)
        if len(reached) > 1:
            axes.axhline(min(reached), color=style.MUTED, linewidth=0.8, linestyle=(0, (1, 2)))
    panels.draw(0, curves, "seconds", "test accuracy", scale=1 / seconds)
    for each in curves if len(reached) > 1 else []:
        at = next((p for p in each.points if p.mean >= min(reached)), None)
        if at is not None:
            panels.of(0, each).plot(
                at.seconds / seconds, at.mean, "o", ms=9, mfc="none", mec=style.INK, zorder=5
            )
    return panels.figure


def _explained(table: Table) -> str:
    return "Line: mean; band: lowest and highest seed." if table.seeds > 1 else "One run per cell."


class Panels:
    """A grid of axes: the parallelisms side by side, `rows` of axes for each."""

    def __init__(self, table: Table, title: str, below: str, footer: str, rows: int) -> None:
        self._table = table
        columns = min(ACROSS, len(table.parallels))
        blocks = -(-len(table.parallels) // columns)
        left = 0.75
        self.wide = min(3.6, (WIDE - left - 0.15 - BETWEEN * (columns - 1)) / columns)
        self._heads = {name: style.wrapped(name, self.wide * 0.95) for name in table.parallels}
        self._states = {name: self._state(name) for name in table.parallels}
        names = list(table.precisions)
        legend = style.legend_height(names, WIDE - 0.4)
        heads = [
            max(self._head_height(name) for name in self._block(block, columns))
            for block in range(blocks)
        ]
        one = rows * PANEL + (rows - 1) * BETWEEN + 0.5  # with ticks and the label of x
        body = sum(heads) + blocks * one + legend
        self.figure, low = style.page(WIDE, body, title, below, footer)
        self._axes: dict[tuple[int, str], Any] = {}
        top = low + body - legend
        for block in range(blocks):
            top -= heads[block]
            for column, name in enumerate(self._block(block, columns)):
                x = left + column * (self.wide + BETWEEN)
                self._write_head(name, x, top)
                for row in range(rows):
                    y = top - (row + 1) * PANEL - row * BETWEEN
                    self._axes[row, name] = self._make(x, y, row, column, rows)
            top -= one
        self._looks = looks(table)
        style.legend(self.figure, self._handles(), names, WIDE, low + body - legend + 0.06)

    def _block(self, block: int, columns: int) -> tuple[str, ...]:
        return self._table.parallels[block * columns : (block + 1) * columns]

    def _make(self, x: float, y: float, row: int, column: int, rows: int) -> Any:
        first = next((axes for (r, _), axes in self._axes.items() if r == row), None)
        axes = style.axes(self.figure, x, y, self.wide, PANEL, share=first)
        axes.grid(True)
        axes.set_axisbelow(True)
        axes.tick_params(labelleft=column == 0, labelbottom=row == rows - 1)
        axes.yaxis.set_major_locator(style.ticks(PANEL, 0.35))
        return axes

    def _state(self, parallel: str) -> str:
        """What is not completed in a panel, and what is disturbed, in words."""
        cells = [Drawn(self._table.cells[parallel, q], ()) for q in self._table.precisions]
        marks = {d.cell.precision: [d.state or d.lost, *d.cell.flaw_names] for d in cells}
        words = {name: ", ".join(filter(None, found)) for name, found in marks.items()}
        told = [f"{name}: {text}" for name, text in words.items() if text]
        return style.wrapped("; ".join(told), self.wide, style.SMALL) if told else ""

    def _head_height(self, parallel: str) -> float:
        state = self._states[parallel]
        below = style.height(state, style.SMALL) if state else 0.0
        return style.height(self._heads[parallel]) + below + 0.12

    def _write_head(self, parallel: str, x: float, y: float) -> None:
        """The name of a panel, and under it what is missing there."""
        y += 0.06
        for text, size, weight in (
            (self._states[parallel], style.SMALL, "normal"),
            (self._heads[parallel], style.TEXT, "bold"),
        ):
            if text:
                style.write(self.figure, x, y, text, size, weight)
                y += style.height(text, size)

    def row(self, row: int) -> list[Any]:
        """All axes of one row."""
        return [axes for (r, _), axes in self._axes.items() if r == row]

    def of(self, row: int, each: Curve) -> Any:
        """The axes of one curve."""
        return self._axes[row, each.drawn.cell.parallel]

    def draw(
        self, row: int, curves: Sequence[Curve], along: str, label: str, scale: float = 1.0
    ) -> None:
        """Every curve in its panel, with the band of its seeds."""
        for each in curves:
            if not each.points:
                continue
            axes = self.of(row, each)
            look = self._looks[each.drawn.cell.precision]
            x = [value * scale for value in each.at(along)]
            axes.fill_between(
                x, each.at("low"), each.at("high"), color=look["color"], alpha=0.16, linewidth=0
            )
            axes.plot(x, each.at("mean"), **look, markevery=self._marked(each, len(x)), zorder=3)
            if each.drawn.state:  # it ends here, and not at the last epoch
                axes.plot(x[-1], each.at("mean")[-1], "x", color=style.INK, ms=8, mew=2, zorder=4)
        for (r, name), axes in self._axes.items():
            if r == row and name in self._table.parallels[:: self._columns()]:
                axes.set_ylabel(label)

    def _marked(self, each: Curve, points: int) -> tuple[int, int]:
        """Few markers, and those of the lines of a panel not at the same epochs."""
        step = max(1, points // 4)
        return self._table.precisions.index(each.drawn.cell.precision) % step, step

    def _columns(self) -> int:
        return min(ACROSS, len(self._table.parallels))

    def _handles(self) -> list[Line2D]:
        return [Line2D([], [], **look, label=name) for name, look in self._looks.items()]


def looks(table: Table) -> dict[str, dict[str, Any]]:
    """Colour, dashes and marker of each precision's line."""
    shades = style.series(min(len(table.precisions), style.MOST_COLOURS))
    return {
        name: {
            "color": shades[index % len(shades)],
            "linestyle": style.DASHES[index % len(style.DASHES)],
            "marker": style.MARKERS[index % len(style.MARKERS)],
            "markersize": 4.5,
        }
        for index, name in enumerate(table.precisions)
    }
