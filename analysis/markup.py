"""The comparison as Markdown, as LaTeX and as a fragment of HTML."""

import html as escaping
import re
from collections.abc import Iterable, Sequence

from analysis import answer, article, pivot, texts
from analysis.answer import Answer, TableAnswer
from analysis.comparison import Comparison, Table
from analysis.pivot import Pivot

LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "*": "{*}",  # else a starred \\ before it
    "±": r"$\pm$",
    "[": "{[}",  # else an option of the \\ before it
    "]": "{]}",
}


def markdown_escape(text: str) -> str:
    """Text that Markdown shows as it is, in a table's cell too."""
    text = re.sub(r"([\\`*\[\]<>|&$~])", r"\\\1", text)
    # An underscore inside a word is no emphasis, and names stay readable without a slash.
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def latex_escape(text: str) -> str:
    """Text that LaTeX typesets as it is."""
    escaped = "".join(LATEX.get(character, character) for character in text)
    return escaped.replace("--", "-{}-")  # two hyphens, not a dash


def markdown(comparison: Comparison, found: Answer, problems: Sequence[str], command: str) -> str:
    """Every table as GitHub's Markdown, its answer first. `command` is what makes it again."""
    lines = ["# Comparison", "", f"Made by `{command.replace('`', '')}`."]
    for table, said in zip(comparison.tables, found.tables, strict=True):
        lines += ["", f"## {markdown_escape(table.title)}", "", f"{texts.counted([table])}."]
        lines += [f"{markdown_escape(table.settings)}; {markdown_escape(table.hardware)}.", ""]
        lines += _markdown_answer(said)
        lines += ["", *markdown_grid(texts.cells_grid(table))]
        if table.footnotes:
            lines += ["", "Notes:", ""]
            lines += [f"{n}. {markdown_escape(text)}" for n, text in enumerate(table.footnotes, 1)]
        lines += ["", *_bullets(texts.legend(table))]
        lines += _markdown_verdicts(table)
        if len(table.cells) > 1:
            lines += ["", "### Matrices"]
            for name in texts.matrices(table):
                lines += ["", *markdown_grid(pivot.grid(pivot.of_table(table, name)))]
        if (grid := texts.article_grid(table)) is not None:
            lines += ["", "### Beside the article", "", *markdown_grid(grid)]
            lines += ["", article.PROVENANCE]
        if (grid := answer.claims_grid(said)) is not None:
            lines += ["", *markdown_grid(grid)]
        if table.missing:
            lines += ["", "Not completed:", "", *_bullets(table.missing)]
    if remarks := texts.remarks(comparison, list(problems)):
        lines += ["", "## Remarks", "", *_bullets(remarks)]
    return "\n".join(lines) + "\n"


def _markdown_answer(said: TableAnswer) -> list[str]:
    lines = [
        f"- **{what}**: {markdown_escape(text)}"
        for what, text in [*answer.sentences(said), *answer.reasons(said)]
    ]
    return [*lines, *_bullets(said.remarks)]


def _markdown_verdicts(table: Table) -> list[str]:
    grid = texts.verdict_grid(table)
    if grid is None:
        return []
    heading = f"### Against {markdown_escape(texts.over(table) or '')}"
    told = [*texts.unjudged(table), *texts.verdict_legend(table)]
    return ["", heading, "", *markdown_grid(grid), "", *_bullets(told)]


def _bullets(told: Sequence[str]) -> list[str]:
    return [f"- {markdown_escape(text)}" for text in told]


def markdown_pivots(pivots: Sequence[Pivot], command: str) -> str:
    """Pivots as GitHub's Markdown."""
    lines = [f"Made by `{command.replace('`', '')}`."]
    for each in pivots:
        lines += ["", f"## {markdown_escape(each.title)}", "", *markdown_grid(pivot.grid(each))]
    return "\n".join(lines) + "\n"


def markdown_grid(grid: texts.Grid) -> list[str]:
    """The lines of one table."""
    rule = ["---" if i < grid.left else "---:" for i in range(len(grid.headings))]
    rows = [[markdown_escape(" ".join(parts)) for parts in row] for row in grid.rows]
    heads = [markdown_escape(heading) for heading in grid.headings]
    return [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]


def latex(comparison: Comparison, found: Answer, command: str) -> str:
    """Every table as a LaTeX table; needs the package booktabs."""
    lines = _latex_head(command)
    for number, (table, said) in enumerate(zip(comparison.tables, found.tables, strict=True), 1):
        notes = [f"({n}) {text}" for n, text in enumerate(table.footnotes, 1)]
        below = [table.settings, table.hardware, *texts.legend(table), *notes]
        below += [f"No speed-ups: {table.unrelated}"] if table.unrelated else []
        caption = f"{table.title}: {texts.counted([table])}"
        grids = [("", texts.cells_grid(table), caption, below)]
        if (grid := texts.verdict_grid(table)) is not None:
            caption = f"{table.title}, against {texts.over(table)}"
            told = [*texts.unjudged(table), *texts.verdict_legend(table)]
            grids.append(("-verdicts", grid, caption, told))
        if (grid := texts.article_grid(table)) is not None:
            caption = f"{table.title}, beside the article"
            grids.append(("-article", grid, caption, [article.PROVENANCE]))
        if (grid := answer.claims_grid(said)) is not None:
            grids.append(("-claims", grid, f"{table.title}, the article's claims", []))
        for suffix, grid, caption, told in grids:
            label = f"tab:amp-sweep-{number}{suffix}"
            lines += ["", *_latex_table(grid, caption, label, told)]
    return "\n".join(lines) + "\n"


def latex_pivots(pivots: Sequence[Pivot], command: str) -> str:
    """Pivots as LaTeX tables; needs the package booktabs."""
    lines = _latex_head(command)
    for number, each in enumerate(pivots, 1):
        caption = f"{each.title}: {each.heading}"
        lines += ["", *_latex_table(pivot.grid(each), caption, f"tab:amp-sweep-pivot-{number}", [])]
    return "\n".join(lines) + "\n"


def _latex_head(command: str) -> list[str]:
    return [f"% Made by: {' '.join(command.split())}", r"% Needs \usepackage{booktabs}."]


def _latex_table(grid: texts.Grid, caption: str, label: str, below: Sequence[str]) -> list[str]:
    aligned = "l" * grid.left + "r" * (len(grid.headings) - grid.left)
    rows = [[_latex_entry(parts, grid.stacked) for parts in row] for row in grid.rows]
    heads = [latex_escape(heading) for heading in grid.headings]
    return [
        r"\begin{table}",
        r"\centering\small",
        rf"\caption{{{latex_escape(caption)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{{aligned}}}",
        r"\toprule",
        " & ".join(heads) + r" \\",
        r"\midrule",
        *(" & ".join(row) + r" \\" for row in rows),
        r"\bottomrule",
        r"\end{tabular}",
        *(rf"\par\footnotesize {latex_escape(text)}" for text in below),
        r"\end{table}",
    ]


def _latex_entry(parts: Sequence[str], stacked: bool) -> str:
    if not stacked or len(parts) < 2:
        return latex_escape(" ".join(parts))
    lines = r" \\ ".join(latex_escape(part) for part in parts)
    return rf"\shortstack[r]{{{lines}}}"


def html(comparison: Comparison, found: Answer, problems: Sequence[str], command: str) -> str:
    """Every table as a fragment of HTML for a page of one's own; all text is escaped."""
    lines = [f"<!-- Made by: {escaping.escape(command).replace('--', '&#45;&#45;')} -->"]
    for table, said in zip(comparison.tables, found.tables, strict=True):
        lines += ["<section>", f"<h2>{escaping.escape(table.title)}</h2>"]
        lines += _paragraphs([f"{texts.counted([table])}. {table.settings}; {table.hardware}"])
        pairs = [*answer.sentences(said), *answer.reasons(said)]
        told = [f"<b>{escaping.escape(a)}</b>: {escaping.escape(b)}" for a, b in pairs]
        told += [escaping.escape(text) for text in said.remarks]
        lines += ["<ul>", *(f"<li>{text}</li>" for text in told), "</ul>"]
        lines += html_grid(texts.cells_grid(table))
        lines += _paragraphs(f"{n}. {text}" for n, text in enumerate(table.footnotes, 1))
        lines += _paragraphs(["; ".join(texts.legend(table))])
        if (grid := texts.verdict_grid(table)) is not None:
            lines += html_grid(grid)
            lines += _paragraphs([*texts.unjudged(table), "; ".join(texts.verdict_legend(table))])
        if (grid := texts.article_grid(table)) is not None:
            lines += [*html_grid(grid), *_paragraphs([article.PROVENANCE])]
        if (grid := answer.claims_grid(said)) is not None:
            lines += html_grid(grid)
        lines += _paragraphs(table.missing)
        lines += ["</section>"]
    return "\n".join([*lines, *_paragraphs(texts.remarks(comparison, list(problems)))]) + "\n"


def html_pivots(pivots: Sequence[Pivot], command: str) -> str:
    """Pivots as a fragment of HTML."""
    lines = [f"<!-- Made by: {escaping.escape(command).replace('--', '&#45;&#45;')} -->"]
    for each in pivots:
        lines += [f"<h2>{escaping.escape(each.title)}</h2>", *html_grid(pivot.grid(each))]
    return "\n".join(lines) + "\n"


def html_grid(grid: texts.Grid) -> list[str]:
    """The lines of one table; figures are in cells of the class `number`."""

    def cell(kind: str, text: str, index: int) -> str:
        mark = "" if index < grid.left else ' class="number"'
        return f"<{kind}{mark}>{escaping.escape(text)}</{kind}>"

    heads = "".join(cell("th", text, i) for i, text in enumerate(grid.headings))
    rows = (
        "".join(cell("td", " ".join(parts), i) for i, parts in enumerate(row)) for row in grid.rows
    )
    body = (f"<tr>{row}</tr>" for row in rows)
    return ["<table>", f"<thead><tr>{heads}</tr></thead>", "<tbody>", *body, "</tbody>", "</table>"]


def _paragraphs(told: Iterable[str]) -> list[str]:
    return [f"<p>{escaping.escape(text)}</p>" for text in told]
