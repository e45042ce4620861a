"""The comparison on a terminal, or as plain text into a file or pipe."""

import re
import sys
from collections.abc import Sequence

from rich import box
from rich.columns import Columns
from rich.console import Console, JustifyMethod
from rich.measure import Measurement
from rich.table import Table as Drawn
from rich.text import Text

from amp_sweep import record
from analysis import article, texts
from analysis.compare import Comparison, Table

# Below this many columns a spread stands under its mean, and headings break.
WIDE = 100
PLAIN_WIDTH = 120
BREAK = re.compile(r" |(?<=-)|(?=/)")  # where a heading may break

STYLES = {
    **{s.upper(): "bold red" for s in (record.FAILED, record.OOM, record.DIVERGED)},
    **{s.upper(): "yellow" for s in (record.INVALID, record.INTERRUPTED, record.TIMEOUT)},
    record.RUNNING.upper(): "cyan",
    record.PENDING.upper(): "dim",
    texts.NOT_ASKED: "dim",
}


def console() -> Console:
    """Standard output; without a terminal as wide as the tables need."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=PLAIN_WIDTH)


def show(comparison: Comparison, problems: Sequence[str], to: Console) -> None:
    """Print every table, then what holds for all of them."""
    if len(comparison.tables) > 1:
        to.print(Text(f"{texts.counted(comparison.tables)}, in {len(comparison.tables)} tables"))
    for table in comparison.tables:
        _show_table(table, to)
    if remarks := texts.remarks(comparison, list(problems)):
        to.print()
        for text in remarks:
            to.print(Text(text, style="yellow"), soft_wrap=True)


def _show_table(table: Table, to: Console) -> None:
    # Text everywhere: what comes from records is never read as rich's markup.
    narrow = to.width < WIDE
    to.print()
    to.print(Text.assemble((table.title, "bold"), f": {texts.counted([table])}"))
    to.print(Text(f"{table.settings}\n{table.hardware}\n", style="dim"))
    drawn = _drawn(texts.cells_grid(table), narrow)
    # Where it does not fit the terminal breaks the lines, and nothing is left out.
    drawn.width = Measurement.get(to, to.options.update(width=1000), drawn).maximum
    to.print(drawn, crop=False)
    to.print()
    if len(table.cells) > 1:
        grids = [_drawn(texts.matrix_grid(table, name), narrow) for name in texts.matrices(table)]
        to.print(Columns(grids, padding=(1, 3)))
        to.print()
    if (grid := texts.article_grid(table)) is not None:
        to.print(_drawn(grid, narrow))
        to.print(Text(f"{article.PROVENANCE}\n", style="dim"))
    if table.unrelated:
        to.print(Text(f"No speed-ups: {table.unrelated}", style="yellow"))
    for text in table.missing:
        to.print(Text(text, style="red"), soft_wrap=True)
    for number, text in enumerate(table.footnotes, 1):
        to.print(Text(f"{number}  {text}"))
    to.print(Text("; ".join(texts.legend(table)), style="dim"))


def _drawn(grid: texts.Grid, narrow: bool) -> Drawn:
    tight = narrow and grid.wide
    gap = (0, 0) if tight else (0, 1)  # beside the one column between that the box has
    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False, padding=gap, show_edge=False)
    for index, heading in enumerate(grid.headings):
        shown = BREAK.sub("\n", heading) if tight else heading
        justify: JustifyMethod = "left" if index < grid.left else "right"
        drawn.add_column(Text(shown), justify=justify, no_wrap=True)  # no digit is cut off
    for row in grid.rows:
        drawn.add_row(*(_entry(parts, narrow) for parts in row))
    return drawn


def _entry(parts: Sequence[str], narrow: bool) -> Text:
    style = STYLES.get(parts[0].split(" ")[0], "") if parts else ""
    return Text(("\n" if narrow else " ").join(parts), style=style)
