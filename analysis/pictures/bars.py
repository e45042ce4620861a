"""A row per cell: throughput, and the spread of step times."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from analysis import texts
from analysis.comparison import Table
from analysis.pictures import style
from analysis.pictures.cells import Drawn, disturbed
from analysis.pictures.rows import BAR, precision_colours, rows, write_at_ends

STEPS = ("step_ms_p50", "step_ms_p95", "step_ms_p99")


def throughput(table: Table, cells: Sequence[Drawn], footer: str) -> Figure:
    """Images per second of each cell with its interval, and its speed-up beside it."""
    told = ["Longer is better."]
    if table.seeds > 1:
        told.append("Bar: mean; line: 95% interval over seeds.")
    if over := texts.over(table):
        told.append(f"At the bar: images per second, and the ratio to {over}.")
    told += disturbed(cells)
    figure, axes, places = rows(table, cells, "images per second", " ".join(told), footer)
    colours = precision_colours(table)
    ends, labels = [], []
    for drawn, y in zip(cells, places, strict=True):
        found = drawn.figure("images_per_s")
        if drawn.state or found.mean is None:
            ends.append(0.0)
            labels.append((y, 0.0, drawn.state or texts.UNKNOWN))
            continue
        colour, hatch = colours[drawn.cell.precision]
        axes.barh(y, found.mean, BAR, color=colour, hatch=hatch, edgecolor=style.PAPER)
        end = found.mean
        if found.interval is not None:
            ends_at = [found.interval.low, found.interval.high]
            for colour, thick in ((style.PAPER, 3.2), (style.INK, 1.1)):  # a rim, for dark bars
                axes.plot(ends_at, [y, y], color=colour, linewidth=thick, zorder=3)
                axes.plot(ends_at, [y, y], "|", color=colour, mew=thick, ms=5 + thick, zorder=3)
            end = max(end, found.interval.high)
        ratio = f"   {drawn.cell.speedup:.2f}x" if drawn.cell.speedup is not None else ""
        ends.append(end)
        labels.append((y, end, f"{texts.quantity(found.mean)}{ratio}{_marks(drawn)}"))
    write_at_ends(axes, labels, max(ends))
    return figure


def _marks(drawn: Drawn) -> str:
    return "".join(f"   {mark}" for mark in (*drawn.cell.flaw_names, drawn.lost) if mark)


def step_times(table: Table, cells: Sequence[Drawn], footer: str) -> Figure | None:
    """Percentiles of the time of a step, means over seeds; None where none was recorded."""
    found = {
        drawn.name: values
        for drawn in cells
        if len(values := [m for name in STEPS if (m := drawn.mean(name)) is not None]) == len(STEPS)
    }
    if not found:
        return None
    told = "Shorter is better. From the marker (half of the steps are faster) over the small line "
    told += "(95% are) to the end (99% are)" + ("; means over seeds." if table.seeds > 1 else ".")
    told = " ".join([told, *disturbed(cells)])
    figure, axes, places = rows(table, cells, "milliseconds per training step", told, footer)
    looks = precision_colours(table)
    marks = dict(zip(table.precisions, style.MARKERS * len(table.precisions), strict=False))
    ends, labels = [], []
    for drawn, y in zip(cells, places, strict=True):
        if drawn.name not in found:
            ends.append(0.0)
            labels.append((y, 0.0, drawn.state or texts.UNKNOWN))
            continue
        p50, p95, p99 = found[drawn.name]
        colour = looks[drawn.cell.precision][0]
        axes.plot([p50, p99], [y, y], color=colour, linewidth=2)
        axes.plot([p95], [y], "|", color=colour, markersize=9, markeredgewidth=2)
        axes.plot([p99], [y], "|", color=colour, markersize=5, markeredgewidth=2)
        axes.plot([p50], [y], marks[drawn.cell.precision], color=colour, markersize=6)
        ends.append(p99)
        figures = " / ".join(texts.quantity(value) for value in (p50, p95, p99))
        labels.append((y, p99, figures + _marks(drawn)))
    write_at_ends(axes, labels, max(ends))
    return figure
