"""Heat maps: parallelism by precision, coloured by one figure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis import texts, verdicts
from analysis.comparison import Table
from analysis.pictures import style
from analysis.pictures.cells import Drawn, disturbed

# Dark blue to bright yellow, with steady lightness (Nunez et al. 2018,
# https://doi.org/10.1371/journal.pone.0199239): the order survives print and colour blindness.
COLOURS = "cividis"
NARROWEST, PAD = 0.95, 0.12


@dataclass(frozen=True)
class Metric:
    """A figure that a heat map may show."""

    name: str
    column: str
    title: str
    text: Callable[[float], str]
    more_is_better: bool


def heat_map(table: Table, cells: Sequence[Drawn], metric: Metric, footer: str) -> Figure | None:
    """One matrix; None where no cell has the figure.

    Brighter is better; what has no value is hatched and says why.
    """
    found = {(d.cell.parallel, d.cell.precision): _lines(d, metric) for d in cells}
    means = [mean for mean, _ in found.values() if mean is not None]
    if not means:
        return None
    span = (min(means), max(means))
    rows = {name: style.wrapped(name, 1.7) for name in table.parallels}
    heads = {name: style.wrapped(name, 1.35) for name in table.precisions}
    entries = [text for _, lines in found.values() for text in lines]
    wide = max([NARROWEST, *(style.width(text) + 2 * PAD for text in [*heads.values(), *entries])])
    lines = max(len(lines) for _, lines in found.values())
    labels = [style.height(text) + PAD for text in rows.values()]
    high = max([lines * style.TEXT * style.LINE / 72 + 2 * PAD, *labels])
    left = 0.2 + max(style.width(text) for text in rows.values()) + 0.15
    above = max(style.height(text) for text in heads.values()) + 0.12
    grid_wide, grid_high = wide * len(heads), high * len(rows)
    scale = 0.35 + 0.18 + max(style.width(metric.text(v), style.SMALL) for v in span) + 0.2
    figure, low = style.page(
        max(left + grid_wide + scale + 0.1, 4.2),
        grid_high + above,
        f"{table.title}: {metric.title}",
        _explained(table, cells, metric),
        footer,
    )
    axes = style.axes(figure, left, low, grid_wide, grid_high)
    axes.set(xlim=(0, len(heads)), ylim=(len(rows), 0), xticks=[], yticks=[])
    axes.set_axis_off()
    shades = matplotlib.colormaps[COLOURS if metric.more_is_better else f"{COLOURS}_r"]
    for y, parallel in enumerate(table.parallels):
        axes.text(-0.12 / wide, y + 0.5, rows[parallel], ha="right", va="center")
        for x, precision in enumerate(table.precisions):
            mean, written = found[parallel, precision]
            share = 0.5 if mean is None or span[0] == span[1] else _share(mean, span)
            colour = style.GREY if mean is None else shades(share)
            axes.add_patch(
                Rectangle(
                    (x, y),
                    1,
                    1,
                    facecolor=colour,
                    edgecolor=style.PAPER,
                    linewidth=2,
                    hatch="//" if mean is None else None,
                )
            )
            for index, text in enumerate(written):
                axes.text(
                    x + 0.5,
                    y
                    + 0.5
                    + (index - (len(written) - 1) / 2) * style.TEXT * style.LINE / 72 / high,
                    text,
                    ha="center",
                    va="center",
                    size=style.TEXT if index == 0 else style.SMALL,
                    weight="bold" if index == 0 else "normal",
                    color=style.INK if mean is None else style.on(colour),
                )
    for x, precision in enumerate(table.precisions):
        axes.text(x + 0.5, -0.08 / high, heads[precision], ha="center", va="bottom")
    if span[0] < span[1]:
        _scale(figure, left + grid_wide + 0.2, low, grid_high, span, metric)
    return figure


def _share(value: float, span: tuple[float, float]) -> float:
    return (value - span[0]) / (span[1] - span[0])


def _scale(
    figure: Figure, left: float, low: float, high: float, span: tuple[float, float], metric: Metric
) -> None:
    """The colour scale, with the better end above."""
    axes = style.axes(figure, left, low, 0.16, high)
    shades = matplotlib.colormaps[COLOURS]
    axes.imshow([[step / 63] for step in range(64)], aspect="auto", cmap=shades, origin="lower")
    worst, best = span if metric.more_is_better else span[::-1]
    axes.set(xticks=[], yticks=[0, 63], yticklabels=[metric.text(worst), metric.text(best)])
    axes.yaxis.tick_right()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _lines(drawn: Drawn, metric: Metric) -> tuple[float | None, list[str]]:
    """The value that colours a cell, and what stands in it."""
    if drawn.state:
        return None, drawn.state.split(", ")
    found = drawn.figure(metric.column)
    if found.mean is None:
        return None, [texts.UNKNOWN]
    lines = [metric.text(found.mean)]
    if found.interval is not None:
        lines.append(f"{metric.text(found.interval.low)} to {metric.text(found.interval.high)}")
    lines += drawn.cell.flaw_names if metric.column in verdicts.TIMING else ()
    return found.mean, [*lines, drawn.lost] if drawn.lost else lines


def _explained(table: Table, cells: Sequence[Drawn], metric: Metric) -> str:
    told = ["Brighter is better."]
    told += ["Mean, and its 95% interval over seeds."] if table.seeds > 1 else []
    return " ".join(told + (disturbed(cells) if metric.column in verdicts.TIMING else []))
