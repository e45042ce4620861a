"""How every picture looks: fonts, colours, and text that is measured before it is placed.

Lengths are inches, sizes of text are points.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import MaxNLocator

INK, MUTED, FAINT, PAPER = "#1b1c20", "#5a5d66", "#d4d6dc", "#fefefe"
GREY = "#e9eaee"  # the ground of what has no value

# Colormap and its shares for a light page and for a dark one. People with any colour vision
# can order both maps; the shares keep what is drawn apart from the page.
SERIES = ("viridis", (0.0, 0.58), (1.0, 0.38))
PARTS = ("magma", (0.12, 0.92), (0.33, 0.95))
MOST_COLOURS = 16

FONT = "DejaVu Sans"  # comes with matplotlib, so that what was measured is what is drawn
TEXT, SMALL, TITLE = 9.0, 7.8, 11.5
BREAK = re.compile(r"(?<=[ _=/,-])")  # where a line may end
LINE = 1.35  # distance of lines of text, in sizes of it

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p")
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1.2, 1.6)),
    (0, (6, 2, 1.2, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (9, 3)),
)
# Lines only: dots make an SVG ten times as large.
HATCHES = ("", "////", "----", "xxxx", "||||", "\\\\\\\\", "++++", "//")

SETTINGS: dict[str, Any] = {
    "font.family": FONT,
    "font.size": TEXT,
    "axes.linewidth": 0.7,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.facecolor": PAPER,
    "axes.labelsize": TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "axes.formatter.use_mathtext": False,
    "figure.facecolor": PAPER,
    "figure.dpi": 100.0,
    "savefig.facecolor": "auto",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "legend.fontsize": TEXT,
    "lines.linewidth": 1.6,
    "text.color": INK,
    "text.parse_math": False,  # names from records hold dollar signs
    "text.usetex": False,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "svg.fonttype": "path",  # the same on every machine
    "svg.hashsalt": "amp_sweep",  # the same figures give the same file
}


@contextmanager
def settings() -> Iterator[None]:
    """Our look inside the block, whatever the user's matplotlibrc says; theirs afterwards."""
    fixed: Any = dict(matplotlib.rcParamsDefault)
    for name in ("backend", "backend_fallback", "interactive"):
        fixed.pop(name, None)
    fixed |= SETTINGS
    with matplotlib.rc_context(fixed):
        yield


def series(number: int) -> list[str]:
    """`number` colours for lines and bars, from dark to light."""
    return _ramp(SERIES[0], number, SERIES[1])


def parts(number: int) -> list[str]:
    """`number` colours for the parts of a stack, of another family than `series`."""
    return _ramp(PARTS[0], number, PARTS[1])


@cache
def dark() -> dict[str, str]:
    """What a dark page shows instead of each colour."""
    found = {INK: "#e7e8ec", MUTED: "#a3a7b3", FAINT: "#3d4049", PAPER: "#17181c", GREY: "#292b32"}
    for name, light_shares, dark_shares in (SERIES, PARTS):
        for number in range(1, MOST_COLOURS + 1):
            shades = _ramp(name, number, dark_shares)
            found |= zip(_ramp(name, number, light_shares), shades, strict=True)
    return found


def _ramp(name: str, number: int, shares: tuple[float, float]) -> list[str]:
    low, high = shares
    colours = matplotlib.colormaps[name]
    steps = [index / max(1, number - 1) for index in range(number)]
    return [to_hex(colours(low + step * (high - low))) for step in steps]


def luminance(colour: Any) -> float:
    """Relative luminance, 0 to 1 (WCAG 2.2, https://www.w3.org/TR/WCAG22/#dfn-relative-luminance)."""
    channels = matplotlib.colors.to_rgb(colour)
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def on(colour: Any) -> str:
    """Black or white, whichever stands out more from `colour`."""
    return "#000001" if luminance(colour) > 0.179 else "#ffffff"


@cache
def _font(size: float) -> FontProperties:
    return FontProperties(family=FONT, size=size)


@cache
def _known() -> frozenset[int]:
    """The characters that the font has."""
    path = fontManager.findfont(_font(TEXT))
    return frozenset(FT2Font(str(Path(path))).get_charmap())


def printable(text: str) -> str:
    """`text` with a box for what the font does not have."""
    return "".join(c if ord(c) in _known() or c == "\n" else "\N{WHITE SQUARE}" for c in text)


@cache
def _renderer() -> Any:
    return FigureCanvasAgg(Figure(figsize=(1, 1), dpi=100)).get_renderer()  # type: ignore[no-untyped-call]


@cache
def _line_width(line: str, size: float) -> float:
    width: float = _renderer().get_text_width_height_descent(line, _font(size), ismath=False)[0]
    return width / 100


def width(text: str, size: float = TEXT) -> float:
    """Width of the widest line."""
    lines = printable(text).split("\n")
    return max((_line_width(line, size) for line in lines if line), default=0.0)


def height(text: str, size: float = TEXT) -> float:
    """Height of all lines, with the space between them."""
    return len(text.split("\n")) * size * LINE / 72


def wrapped(text: str, inches: float, size: float = TEXT) -> str:
    """`text` broken into lines that are at most `inches` wide.

    It breaks at spaces and behind what joins the words of a name; a longer word anywhere.
    """
    lines = [""]
    for piece in BREAK.split(printable(text)):
        if width((lines[-1] + piece).rstrip(), size) <= inches:
            lines[-1] += piece
            continue
        lines.append("")
        for letter in piece:
            if lines[-1] and width((lines[-1] + letter).rstrip(), size) > inches:
                lines.append("")
            lines[-1] += letter
    return "\n".join(line.strip() for line in lines if line.strip())


def page(
    inches: float, body: float, title: str, below: str = "", footer: str = ""
) -> tuple[Figure, float]:
    """A figure `inches` wide with room of height `body`; returns it and where the room begins.

    The title and what explains it stand above the room, the footer under it; both are
    wrapped, and the figure grows with their lines.
    """
    edge = 0.14
    room = inches - 2 * edge
    placed: list[tuple[str, float, str, str]] = [
        (wrapped(title, room * 0.9, TITLE), TITLE, INK, "bold"),
        (wrapped(below, room, SMALL), SMALL, MUTED, "normal"),
    ]
    placed = [item for item in placed if item[0]]
    bottom = wrapped(footer, room, SMALL) if footer else ""
    low = edge + (height(bottom, SMALL) + 0.16 if bottom else 0.0)
    high = sum(height(text, size) + 0.04 for text, size, _, _ in placed) + 0.06
    total = low + body + high + edge
    figure = Figure(figsize=(inches, total))
    FigureCanvasAgg(figure)
    top = total - edge
    for text, size, colour, weight in placed:
        figure.text(
            edge / inches,
            top / total,
            text,
            size=size,
            color=colour,
            weight=weight,
            va="top",
            linespacing=1.15,
        )
        top -= height(text, size) + 0.04
    if bottom:
        figure.text(
            edge / inches,
            edge / total,
            bottom,
            size=SMALL,
            color=MUTED,
            va="bottom",
            linespacing=1.15,
        )
    return figure, low


def axes(
    figure: Figure, left: float, bottom: float, wide: float, high: float, share: Any = None
) -> Any:
    """Axes at a place in inches; both scales are those of `share`."""
    total_wide, total_high = figure.get_size_inches()
    place = (left / total_wide, bottom / total_high, wide / total_wide, high / total_high)
    return figure.add_axes(place, sharex=share, sharey=share)


def write(
    figure: Figure,
    left: float,
    bottom: float,
    text: str,
    size: float = TEXT,
    weight: str = "normal",
    colour: str = INK,
) -> None:
    """Text whose lower left corner is at a place in inches."""
    total_wide, total_high = figure.get_size_inches()
    figure.text(
        left / total_wide,
        bottom / total_high,
        text,
        size=size,
        weight=weight,
        color=colour,
        va="bottom",
        linespacing=1.15,
    )


def legend_columns(names: Sequence[str], inches: float) -> int:
    """How many columns a legend of `names` may have in `inches`."""
    widest = max(width(name) for name in names) + 0.62
    return max(1, min(len(names), int(inches / widest)))


def legend_height(names: Sequence[str], inches: float) -> float:
    """Room for it, with the space around it; 0 without names."""
    return -(-len(names) // legend_columns(names, inches)) * 0.22 + 0.12 if names else 0.0


def legend(
    figure: Figure, handles: Sequence[Any], names: Sequence[str], inches: float, bottom: float
) -> None:
    """A legend above what it explains, in as many columns as `inches` hold."""
    total_wide, total_high = figure.get_size_inches()
    for handle in handles:
        handle.set_label(printable(handle.get_label()))
    figure.legend(
        handles=list(handles),
        loc="lower left",
        bbox_to_anchor=(0.14 / total_wide, bottom / total_high),
        ncols=legend_columns(names, inches - 0.4),
        borderaxespad=0.0,
        borderpad=0.0,
        handlelength=2.2,
        handleheight=1.0,
        columnspacing=1.2,
        labelspacing=0.4,
    )


def ticks(inches: float, label: float = 0.75) -> MaxNLocator:
    """Round numbers, few enough that labels of width `label` stand apart on an axis of `inches`."""
    return MaxNLocator(nbins=max(2, min(8, int(inches / label))), steps=[1, 2, 2.5, 5, 10])


def whole_ticks(inches: float) -> MaxNLocator:
    """The same, of whole numbers."""
    return MaxNLocator(nbins=max(2, min(8, int(inches / 0.4))), integer=True)


def time_unit(seconds: float) -> tuple[str, float]:
    """The unit in which to show times up to this one, and its length in seconds."""
    units = (("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
    return next((name, size) for name, size in units if seconds >= 2 * size or size == 1.0)
