"""Whole outputs against files in `golden/`. After an intended change, write them again with
`WRITE_GOLDEN=1 pytest tests/analysis/test_analysis_golden.py` and read the difference.
"""

import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from amp_sweep import record
from analysis import gate, markup, pivot, report, terminal
from analysis.answer import answer
from analysis.compare import compare
from analysis.frame import load
from tests.analysis.synthetic import ARTICLE, PARALLELS, PRECISIONS, TRUTHS, write_run, write_sweep

FOLDER = Path(__file__).parent / "golden"

BOOM = {"type": "RuntimeError", "message": "bad | [red]x[/red] a_b <i>100%</i>", "rank": 1}


def holes(root: Path) -> Path:
    """Single runs on a CPU: a cell failed, one pending, one not asked for, one input-bound."""
    for at in ((p, q) for p in PARALLELS for q in PRECISIONS):
        own: dict[tuple[str, str], dict[str, Any]] = {
            ("none", "autocast"): {"metrics": {"data_wait_frac": 0.4}},
            ("dp", "scaler"): {"status": record.FAILED, "error": BOOM},
            ("ddp", "scaler"): {"status": record.PENDING},
            ("ddp", "fp32"): {
                "metrics": {"diagnosis": "launch-bound", "diagnosis_evidence": "gaps take 60%"}
            },
        }
        if at != ("dp", "autocast"):
            run = write_run(root, *at, **own.get(at, {}))
    return run.parent


def known(root: Path) -> Path:
    """Three seeds of every cell of the sweep whose truths are known."""
    return write_sweep(root, TRUTHS, 3)


def article(root: Path) -> Path:
    """The same with the article's settings: its figures and claims stand beside."""
    return write_sweep(root, TRUTHS, 3, settings=ARTICLE)


def screen(sweep: Path, width: int) -> str:
    frame, problems = load(sweep)
    comparison = compare(frame)
    to = Console(width=width, highlight=False, file=io.StringIO())
    terminal.show(comparison, answer(comparison), problems, to)
    return written_by(to)


def written_by(to: Console) -> str:
    assert isinstance(to.file, io.StringIO)
    return "\n".join(line.rstrip() for line in to.file.getvalue().splitlines()) + "\n"


def marked_up(sweep: Path, name: str) -> str:
    frame, problems = load(sweep)
    comparison = compare(frame)
    said, command = answer(comparison), "python -P -m analysis outputs/matrix"
    if name == "md":
        return markup.markdown(comparison, said, problems, command)
    if name == "tex":
        return markup.latex(comparison, said, command)
    return markup.html(comparison, said, problems, command)


def long_form(sweep: Path) -> str:
    return report.long_form(compare(load(sweep)[0])).to_csv(index=False, float_format="%.6g")


def pivots(sweep: Path) -> str:
    frame = load(sweep)[0]
    found = [
        each
        for metric in ("images/s", "speed-up")
        for each in pivot.of_frame(frame, compare(frame), "precision", "seed", metric)
    ]
    return markup.markdown_pivots(found, "python -P -m analysis outputs/matrix")


def checked(sweep: Path) -> str:
    now = load(sweep)[0]
    before = now.copy()
    slow = before["precision"] == "autocast"
    before.loc[slow, "images_per_s"] *= 1.3
    to = Console(width=120, highlight=False, file=io.StringIO())
    terminal.show_grid(gate.grid(gate.check(now, before, gate.Tolerances())), to)
    return written_by(to)


CASES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], str]]] = {
    "holes-120.txt": (holes, lambda sweep: screen(sweep, 120)),
    "holes-80.txt": (holes, lambda sweep: screen(sweep, 80)),
    "holes.md": (holes, lambda sweep: marked_up(sweep, "md")),
    "holes.tex": (holes, lambda sweep: marked_up(sweep, "tex")),
    "holes.html": (holes, lambda sweep: marked_up(sweep, "html")),
    "known-120.txt": (known, lambda sweep: screen(sweep, 120)),
    "known-80.txt": (known, lambda sweep: screen(sweep, 80)),
    "known.md": (known, lambda sweep: marked_up(sweep, "md")),
    "known.tex": (known, lambda sweep: marked_up(sweep, "tex")),
    "known.html": (known, lambda sweep: marked_up(sweep, "html")),
    "known.csv": (known, long_form),
    "known-pivots.md": (known, pivots),
    "known-gate.txt": (known, checked),
    "article-120.txt": (article, lambda sweep: screen(sweep, 120)),
    "article.md": (article, lambda sweep: marked_up(sweep, "md")),
    "article.tex": (article, lambda sweep: marked_up(sweep, "tex")),
    "article.html": (article, lambda sweep: marked_up(sweep, "html")),
}


@pytest.mark.parametrize("name", CASES)
def test_the_output_is_as_agreed(tmp_path: Path, name: str) -> None:
    write, make = CASES[name]
    made = make(write(tmp_path))
    # Where a run lies differs from test to test.
    made = re.sub(r"\S*/((?:none|dp|ddp)-\w+-s\d)-[0-9a-f]{8}", r"RUN/\1", made)
    made = made.replace(markup.markdown_escape("[RUN"), "[RUN").replace(r"{[}/", "[")
    if os.environ.get("WRITE_GOLDEN"):
        (FOLDER / name).write_text(made, encoding="utf-8")
    assert made == (FOLDER / name).read_text(encoding="utf-8")
