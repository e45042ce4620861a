"""The comparison as Markdown and as LaTeX."""

import re
from collections.abc import Sequence

from analysis import article, texts
from analysis.compare import Comparison

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


def markdown(comparison: Comparison, problems: Sequence[str], command: str) -> str:
    """Every table as GitHub's Markdown. `command` is what makes it again."""
    lines = ["# Comparison", "", f"Made by `{command.replace('`', '')}`."]
    for table in comparison.tables:
        lines += ["", f"## {markdown_escape(table.title)}", "", f"{texts.counted([table])}."]
        lines += [f"{markdown_escape(table.settings)}; {markdown_escape(table.hardware)}."]
        lines += ["", *_markdown_grid(texts.cells_grid(table))]
        if table.footnotes:
            lines += ["", "Notes:", ""]
            lines += [f"{n}. {markdown_escape(text)}" for n, text in enumerate(table.footnotes, 1)]
        lines += ["", *(f"- {markdown_escape(text)}" for text in texts.legend(table))]
        if table.unrelated:
            lines += [f"- No speed-ups: {markdown_escape(table.unrelated)}"]
        if (grid := texts.article_grid(table)) is not None:
            lines += ["", "### Beside the article", "", *_markdown_grid(grid)]
            lines += ["", article.PROVENANCE]
        if table.missing:
            lines += ["", "Not completed:", ""]
            lines += [f"- {markdown_escape(text)}" for text in table.missing]
    if remarks := texts.remarks(comparison, list(problems)):
        lines += ["", "## Remarks", "", *(f"- {markdown_escape(text)}" for text in remarks)]
    return "\n".join(lines) + "\n"


def _markdown_grid(grid: texts.Grid) -> list[str]:
    rule = ["---" if i < grid.left else "---:" for i in range(len(grid.headings))]
    rows = [[markdown_escape(" ".join(parts)) for parts in row] for row in grid.rows]
    heads = [markdown_escape(heading) for heading in grid.headings]
    return [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]


def latex(comparison: Comparison, command: str) -> str:
    """Every table as a LaTeX table; needs the package booktabs."""
    lines = [f"% Made by: {' '.join(command.split())}", r"% Needs \usepackage{booktabs}."]
    for number, table in enumerate(comparison.tables, 1):
        notes = [f"({n}) {text}" for n, text in enumerate(table.footnotes, 1)]
        below = [table.settings, table.hardware, *texts.legend(table), *notes]
        below += [f"No speed-ups: {table.unrelated}"] if table.unrelated else []
        caption = f"{table.title}: {texts.counted([table])}"
        grid = texts.cells_grid(table)
        lines += ["", *_latex_table(grid, caption, f"tab:amp-sweep-{number}", below)]
        if (grid_beside := texts.article_grid(table)) is not None:
            caption = f"{table.title}, beside the article"
            label = f"tab:amp-sweep-{number}-article"
            lines += ["", *_latex_table(grid_beside, caption, label, [article.PROVENANCE])]
    return "\n".join(lines) + "\n"


def _latex_table(grid: texts.Grid, caption: str, label: str, below: Sequence[str]) -> list[str]:
    aligned = "l" * grid.left + "r" * (len(grid.headings) - grid.left)
    rows = [[latex_escape(" ".join(parts)) for parts in row] for row in grid.rows]
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
