"""A horizontal row per cell: throughput, the parts of the memory, the spread of step times."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from analysis import texts
from analysis.compare import Table
from analysis.pictures import style
from analysis.pictures.cells import Drawn, per_device

WIDE = 7.2
ROW, GAP = 0.3, 0.16  # height of a cell's row, and between two parallelisms

# The parts of a device's memory, from what training always needs to what nobody asked for.
PARTS = {
    "memory_parameters_mib": "parameters",
    "memory_gradients_mib": "gradients",
    "memory_optimizer_mib": "optimizer state",
    "memory_activations_mib": "activations",
    "memory_input_mib": "input",
    "memory_workspace_mib": "workspace",
    "memory_unattributed_mib": "not attributed",
}
STEPS = ("step_ms_p50", "step_ms_p95", "step_ms_p99")


def throughput(table: Table, cells: Sequence[Drawn], footer: str) -> Figure:
    """Images per second of each cell with its interval, and its speed-up beside it."""
    told = ["Longer is better."]
    if table.seeds > 1:
        told.append("Bar: mean; line: 95% interval over seeds.")
    if over := texts.over(table):
        told.append(f"At the bar: images per second, and the ratio to {over}.")
    figure, axes, places = _rows(table, cells, "images per second", " ".join(told), footer)
    colours = precision_colours(table)
    ends, labels = [], []
    for drawn, y in zip(cells, places, strict=True):
        found = drawn.figure("images_per_s")
        if drawn.state or found.mean is None:
            ends.append(0.0)
            labels.append((y, 0.0, drawn.state or texts.UNKNOWN))
            continue
        colour, hatch = colours[drawn.cell.precision]
        axes.barh(y, found.mean, ROW * 0.76, color=colour, hatch=hatch, edgecolor=style.PAPER)
        end = found.mean
        if found.interval is not None:
            ends_at = [max(0.0, found.interval.low), found.interval.high]
            for colour, thick in ((style.PAPER, 3.2), (style.INK, 1.1)):  # a rim, for dark bars
                axes.plot(ends_at, [y, y], color=colour, linewidth=thick, zorder=3)
                axes.plot(ends_at, [y, y], "|", color=colour, mew=thick, ms=5 + thick, zorder=3)
            end = max(end, found.interval.high)
        ratio = f"   {drawn.cell.speedup:.2f}x" if drawn.cell.speedup is not None else ""
        ends.append(end)
        labels.append((y, end, f"{texts.quantity(found.mean)}{ratio}{_lost(drawn)}"))
    _write_at_ends(axes, labels, max(ends))
    return figure


def _lost(drawn: Drawn) -> str:
    return f"   {drawn.lost}" if drawn.lost else ""


def memory(table: Table, cells: Sequence[Drawn], footer: str) -> Figure | None:
    """The parts of the fullest device's memory, means over seeds; None where none was recorded."""
    stacks = {drawn.name: _parts_of(drawn) for drawn in cells}
    used = [part for part in PARTS if any(stack.get(part) for stack in stacks.values())]
    if not used:
        return None
    told = "Shorter is better. The device that needs most; means over seeds." + (
        " Line and figure: the peak of the same step."
        if any(drawn.mean("memory_probe_peak_mib") for drawn in cells)
        else ""
    )
    names = [PARTS[part] for part in used]
    figure, axes, places = _rows(
        table, cells, "memory by what it is for, MiB", told, footer, legend=names
    )
    shades = dict(zip(PARTS, style.parts(len(PARTS)), strict=True))
    hatches = dict(zip(PARTS, style.HATCHES, strict=False))
    ends, labels = [], []
    for drawn, y in zip(cells, places, strict=True):
        end = 0.0
        for part in used:
            # A difference of two measurements may be below zero.
            if (value := stacks[drawn.name].get(part, 0.0)) > 0:
                look = {"color": shades[part], "hatch": hatches[part], "edgecolor": style.PAPER}
                axes.barh(y, value, ROW * 0.76, left=end, linewidth=0, **look)
                axes.barh(y, value, ROW * 0.76, left=end, linewidth=0.6, fill=False, ec=style.MUTED)
                end += value
        if peak := drawn.mean("memory_probe_peak_mib"):
            axes.plot([peak, peak], [y - ROW * 0.45, y + ROW * 0.45], color=style.INK, zorder=3)
            end = max(end, peak)
        ends.append(end)
        labels.append((y, end, texts.quantity(end) if end else drawn.state or texts.UNKNOWN))
    _write_at_ends(axes, labels, max(ends))
    handles = [
        Patch(facecolor=shades[part], hatch=hatches[part], edgecolor=style.PAPER, label=PARTS[part])
        for part in used
    ]
    above = axes.get_position().y1 * figure.get_size_inches()[1] + 0.06
    style.legend(figure, handles, names, WIDE, above)
    return figure


def _parts_of(drawn: Drawn) -> dict[str, float]:
    """MiB of each part on the fullest device of each run, then the mean over runs."""
    fullest: list[dict[str, float]] = []
    for row in drawn.rows:
        found = {part: per_device(row, part) for part in PARTS}
        devices = max(len(values) for values in found.values())
        per = [
            {part: values[i] for part, values in found.items() if i < len(values)}
            for i in range(devices)
        ]
        if per:
            fullest.append(max(per, key=lambda one: sum(one.values())))
    return {
        part: sum(one.get(part, 0.0) for one in fullest) / len(fullest) for part in PARTS if fullest
    }


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
    figure, axes, places = _rows(table, cells, "milliseconds per training step", told, footer)
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
        labels.append((y, p99, " / ".join(texts.quantity(value) for value in (p50, p95, p99))))
    _write_at_ends(axes, labels, max(ends))
    return figure


def precision_colours(table: Table) -> dict[str, tuple[str, str]]:
    """Colour and hatch of each precision; they repeat only beyond sixteen."""
    number = len(table.precisions)
    shades = style.series(min(number, style.MOST_COLOURS))
    return {
        name: (shades[index % len(shades)], style.HATCHES[index % len(style.HATCHES)])
        for index, name in enumerate(table.precisions)
    }


def _rows(
    table: Table,
    cells: Sequence[Drawn],
    title: str,
    below: str,
    footer: str,
    legend: Sequence[str] = (),
) -> tuple[Figure, Any, list[float]]:
    """A page with named rows, and the height in inches of each row's middle."""
    names = [style.wrapped(drawn.name, 2.3) for drawn in cells]
    heights = [max(ROW, style.height(name) + 0.06) for name in names]
    places, y = [], GAP / 2
    for index, (drawn, high) in enumerate(zip(cells, heights, strict=True)):
        if index and drawn.cell.parallel != cells[index - 1].cell.parallel:
            y += GAP
        places.append(y + high / 2)
        y += high
    body = y + GAP / 2
    left = 0.3 + max(style.width(name) for name in names)
    room = style.legend_height(legend, WIDE - 0.4)
    figure, low = style.page(WIDE, body + 0.32 + room, f"{table.title}: {title}", below, footer)
    axes = style.axes(figure, left, low + 0.32, WIDE - left - 0.2, body)
    axes.set(ylim=(body, 0), yticks=places, yticklabels=names)
    axes.tick_params(axis="y", length=0, pad=6, labelsize=style.TEXT)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    axes.set_axisbelow(True)
    return figure, axes, places


def _write_at_ends(axes: Any, labels: Sequence[tuple[float, float, str]], largest: float) -> None:
    """Text behind the end of each row, and an axis that leaves room for it."""
    inches = axes.get_figure().get_size_inches()[0] * axes.get_position().width
    room = max((style.width(text) for _, _, text in labels), default=0.0) + 0.2
    limit = (largest or 1.0) * inches / max(inches - room, 0.3 * inches)
    axes.set_xlim(0, limit)
    axes.xaxis.set_major_locator(style.ticks(inches))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    for y, end, text in labels:
        state = text[:1].isalpha() and text != texts.UNKNOWN
        axes.text(
            end + 0.07 * limit / inches,
            y,
            text,
            va="center",
            color=style.INK,
            weight="bold" if state else "normal",
        )
