"""What charts with a horizontal row per cell have in common."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from analysis.comparison import Table
from analysis.pictures import style
from analysis.pictures.cells import Drawn

WIDE = 7.2
ROW, GAP = 0.3, 0.16  # height of a cell's row, and between two parallelisms
BAR = 0.76 * ROW


def precision_colours(table: Table) -> dict[str, tuple[str, str]]:
    """Colour and hatch of each precision; they repeat only beyond sixteen."""
    number = len(table.precisions)
    shades = style.series(min(number, style.MOST_COLOURS))
    return {
        name: (shades[index % len(shades)], style.HATCHES[index % len(style.HATCHES)])
        for index, name in enumerate(table.precisions)
    }


def rows(
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


def write_at_ends(axes: Any, labels: Sequence[tuple[float, float, str]], largest: float) -> None:
    """Text behind the end of each row, and an axis that leaves room for it."""
    inches = axes.get_figure().get_size_inches()[0] * axes.get_position().width
    room = max((style.width(text) for _, _, text in labels), default=0.0) + 0.2
    limit = (largest or 1.0) * inches / max(inches - room, 0.3 * inches)
    axes.set_xlim(0, limit)
    axes.xaxis.set_major_locator(style.ticks(inches))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    for y, end, text in labels:
        axes.text(
            end + 0.07 * limit / inches,
            y,
            text,
            va="center",
            color=style.INK,
            weight="bold" if text[:1].isalpha() and text.split(" ")[0].isupper() else "normal",
        )
