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
from analysis import answer, article, pivot, texts, verdicts
from analysis.answer import Answer, TableAnswer
from analysis.comparison import Comparison, Table
from analysis.pivot import Pivot

# Below this many columns a spread stands under its mean, and headings break.
WIDE = 100
PLAIN_WIDTH = 120
# The others are columns of the table of cells.
SHOWN_MATRICES = ("train_time_s", texts.SPEEDUP, "energy_j", verdicts.ACCURACY)
BREAK = re.compile(r" |(?<=-)|(?=/)")  # where a heading may break

STYLES = {
    **{s.upper(): "bold red" for s in (record.FAILED, record.OOM, record.DIVERGED)},
    **{s.upper(): "yellow" for s in (record.INVALID, record.INTERRUPTED, record.TIMEOUT)},
    record.RUNNING.upper(): "cyan",
    record.PENDING.upper(): "dim",
    texts.NOT_ASKED: "dim",
    **dict.fromkeys(verdicts.GOOD, "green"),
    **dict.fromkeys(verdicts.BAD, "red"),
    article.HELD: "green",
    article.NOT_HELD: "yellow",
    "WORSE": "bold red",
}


def console() -> Console:
    """Standard output; without a terminal as wide as the tables need."""
    if sys.stdout.isatty():
        return Console(highlight=False)
    return Console(highlight=False, width=PLAIN_WIDTH)


def show(comparison: Comparison, found: Answer, problems: Sequence[str], to: Console) -> None:
    """Print every table, each with its answer first, then what holds for all of them."""
    if len(comparison.tables) > 1:
        to.print(Text(f"{texts.counted(comparison.tables)}, in {len(comparison.tables)} tables"))
    for table, said in zip(comparison.tables, found.tables, strict=True):
        _show_table(table, said, to)
    show_remarks(comparison, problems, to)


def show_pivots(pivots: Sequence[Pivot], comparison: Comparison, to: Console) -> None:
    """Print pivots, those of one title side by side, and why there are no speed-ups."""
    for title in dict.fromkeys(each.title for each in pivots):
        to.print()
        to.print(Text(title, style="bold"))
        grids = [pivot.grid(each) for each in pivots if each.title == title]
        _beside(grids, to)
    if any(each.metric == texts.SPEEDUP for each in pivots):
        for text in dict.fromkeys(table.unrelated for table in comparison.tables):
            to.print(Text(f"No speed-ups: {text}" if text else "", style="yellow"))


def show_grid(grid: texts.Grid, to: Console) -> None:
    """Print one grid at its full width: nothing is cut off."""
    drawn = _drawn(grid, narrow=to.width < WIDE)
    # Where it does not fit the terminal breaks the lines, and nothing is left out.
    drawn.width = Measurement.get(to, to.options.update(width=1000), drawn).maximum
    to.print(drawn, crop=False)


def show_remarks(comparison: Comparison, problems: Sequence[str], to: Console) -> None:
    """Print what holds for the whole load."""
    if remarks := texts.remarks(comparison, list(problems)):
        to.print()
        for text in remarks:
            to.print(Text(text, style="yellow"), soft_wrap=True)


def _show_table(table: Table, said: TableAnswer, to: Console) -> None:
    # Text everywhere: what comes from records is never read as rich's markup.
    to.print()
    to.print(Text.assemble((table.title, "bold"), f": {texts.counted([table])}"))
    to.print(Text(f"{table.settings}\n{table.hardware}\n", style="dim"))
    _show_answer(said, to)
    show_grid(texts.cells_grid(table), to)
    to.print()
    if (grid := texts.verdict_grid(table)) is not None:
        to.print(Text(f"Against {texts.over(table)}", style="bold"))
        show_grid(grid, to)
        for text in texts.unjudged(table):
            to.print(Text(text, style="yellow"), soft_wrap=True)
        to.print(Text("; ".join(texts.verdict_legend(table)) + "\n", style="dim"))
    if len(table.cells) > 1:
        names = [n for n in texts.matrices(table) if n in SHOWN_MATRICES or n == table.memory]
        _beside([pivot.grid(pivot.of_table(table, name)) for name in names], to)
    if (grid := texts.article_grid(table)) is not None:
        show_grid(grid, to)
        to.print(Text(f"{article.PROVENANCE}\n", style="dim"))
    for claim in said.claims:
        to.print(
            Text.assemble(
                (f"{claim.verdict}: ", STYLES.get(claim.verdict, "")),
                f'"{claim.text}" (here {claim.evidence})',
            )
        )
    if said.claims:
        to.print()
    for text in table.missing:
        to.print(Text(text, style="red"), soft_wrap=True)
    for number, text in enumerate(table.footnotes, 1):
        to.print(Text(f"{number}  {text}"))
    to.print(Text("; ".join(texts.legend(table)), style="dim"))


def _show_answer(said: TableAnswer, to: Console) -> None:
    for what, text in answer.sentences(said):
        to.print(Text.assemble((f"{what}: ", "bold green"), text))
    for text in said.remarks:
        to.print(Text(text, style="yellow"))
    for cell, why in answer.reasons(said):
        to.print(Text.assemble((f"{cell}: ", "bold"), why))
    to.print()


def _beside(grids: Sequence[texts.Grid], to: Console) -> None:
    """Grids next to each other as far as the screen is wide; one that is wider stands alone. An
    empty line follows.
    """
    if not grids:
        return
    wide = to.options.update(width=1000)
    drawn = [_drawn(grid, to.width < WIDE) for grid in grids]
    if any(Measurement.get(to, wide, each).maximum > to.width for each in drawn):
        for grid in grids:
            show_grid(grid, to)
            to.print()
    else:
        to.print(Columns(drawn, padding=(1, 3)))
        to.print()


def _drawn(grid: texts.Grid, narrow: bool) -> Drawn:
    tight = narrow and grid.wide
    gap = (0, 0) if tight else (0, 1)  # beside the one column between that the box has
    drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False, padding=gap, show_edge=False)
    for index, heading in enumerate(grid.headings):
        shown = BREAK.sub("\n", heading) if tight else heading
        justify: JustifyMethod = "left" if index < grid.left else "right"
        drawn.add_column(Text(shown), justify=justify, no_wrap=True)  # no digit is cut off
    for row in grid.rows:
        drawn.add_row(*(_entry(parts, narrow or grid.stacked) for parts in row))
    return drawn


def _entry(parts: Sequence[str], narrow: bool) -> Text:
    known = (STYLES.get(part.rstrip(",")) for part in parts)
    style = next((each for each in known if each), "")
    first = parts[0].split(" ")[0] if parts else ""
    return Text(("\n" if narrow else " ").join(parts), style=style or STYLES.get(first, ""))
