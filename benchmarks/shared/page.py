"""The page that a benchmark writes, and the figures beside it."""

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def command(module: str, arguments: Sequence[str] | None) -> str:
    """What was typed: `python -m benchmarks.MODULE` with `arguments`, or with the process's."""
    given = sys.argv[1:] if arguments is None else arguments
    return " ".join([f"python -m benchmarks.{module}", *given])


def write(path: Path, title: str, text: str, made_by: str) -> None:
    """A page of its own: title, text, and the command that made it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"# {title}\n\n{text}.\n\nMade by `{made_by}`.\n", encoding="utf-8")


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows, at least one, under the names of the first."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def write_json(path: Path, values: Any) -> None:
    """Values, in lines that can be compared."""
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def so_far(lines: Sequence[str], provenance: Sequence[str], out: Path | None, results: Any) -> str:
    """A table's `lines` above where it comes from; in `out`, if given, as table.md, with
    results.json.
    """
    text = "\n".join([*lines, "", *(f"- {line}" for line in provenance), ""])
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "table.md").write_text(text, encoding="utf-8")
        write_json(out / "results.json", results)
    return text
