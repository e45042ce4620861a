"""What the READMEs quote of the reference results is what `analysis` makes of their records."""

import itertools
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from amp_sweep import record
from analysis import claims, compare, frame, texts, verdicts
from analysis.__main__ import main
from analysis.article import HELD, NOT_DECIDED, NOT_HELD
from analysis.comparison import Cell, Table

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "outputs" / "reference"
HEADING = "## The article, repeated"  # of the README's part on the reference results

Cells = dict[tuple[str, str], list[str]]

# Figures in sentences; what each may be is in `figures_of`. The 95% of an interval is none.
IN_SENTENCES = {
    "ratio": r"\d[\d.,]*x(?: \([\d.,]+ to [\d.,]+\))?",
    "difference": r"[+-]\d+\.\d\d(?: \([+-][\d.]+ to [+-][\d.]+\))? points",
    "accuracy": r"\b0\.\d{4}\b",
    "speed": r"\d[\d,]* images/s",
    "wait": r"\b(?!95%)\d+%",
    "time": r"\b(?:\d+ m )?\d[\d.]* s\b",
    "n": r"n = \d+",
    "claims": r"Of its \d+ claims on these cells .*?\.",
}


def tables() -> tuple[Table, list[Table]]:
    """Of the article's settings, and of the article as written where that was run."""
    found, problems = frame.load(REFERENCE)
    assert problems == []
    article, written = [], []
    for table in compare.compare(found).tables:
        if table.key["data.pipeline"] == "pil":
            written.append(table)
        elif any(cell.published for cell in table.cells.values()):
            article.append(table)
    assert len(article) == 1
    return article[0], written


def speedup(cell: Cell, table: Table) -> str:
    if cell is table.baseline:
        return "1.00x"
    return " ".join(texts.estimate(cell.effects["images_per_s"]))


def row(cell: Cell, table: Table) -> list[str]:
    """The columns of the README's table, after the name of the cell."""
    mean = {name: cell.figures[name].mean or 0.0 for name in cell.figures}
    accuracy = cell.figures[verdicts.ACCURACY]
    told = f"{mean[verdicts.ACCURACY]:.4f}"
    if accuracy.interval:
        told += f" ({accuracy.interval.low:.4f} to {accuracy.interval.high:.4f})"
    article = "-"
    if cell.published:
        minutes, its = cell.published.minutes, cell.published.accuracy
        words = ["-" if minutes is None else f"{minutes} min", "-" if its is None else f"{its:.4f}"]
        article = ", ".join(words)
    return [
        str(cell.completed),
        str(cell.devices),
        record.duration(mean["train_time_s"]),
        f"{mean['images_per_s']:,.0f}",
        speedup(cell, table),
        f"{mean['peak_allocated_mib']:,.0f} MiB",
        told,
        article,
    ]


def part(readme: str) -> str:
    """What the README says of the reference results."""
    assert readme.count(f"{HEADING}\n") == 1
    return readme.split(f"{HEADING}\n")[1].split("\n## ")[0]


def rows_in(text: str) -> Cells:
    found = re.findall(r"^\| (none|dp|ddp) x (\w+) \| (.+) \|$", text, re.MULTILINE)
    assert len({each[:2] for each in found}) == len(found)
    return {(parallel, precision): rest.split(" | ") for parallel, precision, rest in found}


def figures_of(article: Table, written: list[Table]) -> dict[str, set[str]]:
    """What a sentence may quote, by kind."""
    found: dict[str, set[str]] = {kind: set() for kind in IN_SENTENCES}
    for table in (article, *written):
        cells = [cell for cell in table.cells.values() if cell.completed]
        for cell in cells:
            mean = {name: figure.mean for name, figure in cell.figures.items()}
            found["speed"].add(f"{mean['images_per_s']:,.0f} images/s")
            found["wait"].add(f"{mean['data_wait_frac']:.0%}")
            found["n"].add(f"n = {cell.completed}")
            epochs = int(str(table.key["epochs"]))
            found["time"].add(record.duration(mean["train_time_s"] or 0.0))
            found["time"].add(record.duration((mean["train_time_s"] or 0.0) / epochs))
            if table is article:
                told = row(cell, table)
                found["accuracy"] |= set(re.findall(IN_SENTENCES["accuracy"], " ".join(told)))
        for one, other in itertools.permutations(cells, 2):
            for name in ("images_per_s", "train_time_s", table.memory, verdicts.ACCURACY):
                unfit = compare.unfit(name, one, other)
                effect = verdicts.effect(name, one.figures[name], other.figures[name], unfit)
                assert effect is not None
                parts = texts.estimate(effect)
                kind, unit = (
                    ("difference", " points") if name == verdicts.ACCURACY else ("ratio", "")
                )
                found[kind] |= {f"{parts[0]}{unit}", f"{' '.join(parts)}{unit}"}
    judged = Counter(claim.verdict for claim in claims.check(article))
    found["claims"] = {
        f"Of its {judged.total()} claims on these cells {judged[HELD]} held, "
        f"{judged[NOT_HELD]} did not, {judged[NOT_DECIDED]} "
        f"{'is' if judged[NOT_DECIDED] == 1 else 'are'} not decided."
    }
    return found


def wrong_rows(text: str, article: Table) -> list[str]:
    """What the table in `text` has otherwise than the records."""
    quoted = rows_in(text)
    expected = {at: row(cell, article) for at, cell in article.cells.items() if cell.completed}
    nine = set(itertools.product(("none", "dp", "ddp"), ("fp32", "autocast", "scaler")))
    return [
        *(
            f"{at}: {told}, not {expected.get(at)}"
            for at, told in quoted.items()
            if told != expected.get(at)
        ),
        *(f"{at}: not there" for at in sorted((nine & set(expected)) - set(quoted))),
    ]


def sentences(text: str) -> str:
    return " ".join(line for line in text.splitlines() if not line.startswith("|"))


def wrong_words(words: str, known: dict[str, set[str]]) -> list[str]:
    """What the sentences `words` quote that no record says."""
    found = []
    for kind, pattern in IN_SENTENCES.items():
        found += [each for each in re.findall(pattern, words) if each not in known[kind]]
        words = re.sub(pattern, " ", words)
    return found


def altered(text: str) -> list[str]:
    """`text` with another digit in one place, for each number in it."""
    places = [found.start() for found in re.finditer(r"\d[\d.,]*", text)]
    return [f"{text[:at]}{'7' if text[at] != '7' else '3'}{text[at + 1 :]}" for at in places]


def test_the_readme_quotes_the_reference_records() -> None:
    text = part((ROOT / "README.md").read_text(encoding="utf-8"))
    article, written = tables()
    assert wrong_rows(text, article) == []
    words = sentences(text)
    assert wrong_words(words, figures_of(article, written)) == []
    for kind in ("ratio", "claims", *(["wait"] if written else [])):
        assert re.search(IN_SENTENCES[kind], words), f"no {kind} is quoted"


def test_another_figure_in_the_readme_would_not_pass() -> None:
    text = part((ROOT / "README.md").read_text(encoding="utf-8"))
    article, written = tables()
    lines = [line for line in text.splitlines() if re.match(r"\| (none|dp|ddp) x ", line)]
    for line in lines:
        name, figures = line.split(" | ", 1)
        for other in altered(figures):
            assert wrong_rows(text.replace(line, f"{name} | {other}"), article), other
    words, known = sentences(text), figures_of(article, written)
    for pattern in IN_SENTENCES.values():
        for quoted in set(re.findall(pattern, words)):
            for other in altered(quoted):
                assert wrong_words(other, known) or other in set().union(*known.values()), other


def test_the_committed_tables_are_those_of_the_committed_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(["outputs/reference", "--out", str(tmp_path), "--no-pictures"]) == 0
    capsys.readouterr()
    for path in sorted(tmp_path.iterdir()):
        made, there = (
            [
                line
                for line in each.read_text(encoding="utf-8").splitlines()
                if "-m analysis" not in line
            ]
            for each in (path, REFERENCE / "tables" / path.name)
        )
        assert there == made, f"{path.name}: python -P -m analysis outputs/reference"


def test_the_reference_readme_names_what_its_runs_ran_on() -> None:
    readme = (REFERENCE / "README.md").read_text(encoding="utf-8")
    runs = [record.read(path) for path in record.find(REFERENCE)]
    assert runs and {run.status for run in runs} == {record.COMPLETED}
    for name in ("gpu", "driver", "python", "torch", "torchvision", "cuda", "git_commit"):
        for value in {run.environment[name] for run in runs} - {None}:
            told = value[:7] if name == "git_commit" else value
            assert told in readme, f"{name}: {value}"
    for day in {part["ended_at"][:10] for run in runs for part in run.segments}:
        assert day in readme


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_keeps_records_tables_and_pictures_of_the_reference_and_nothing_else(
    tmp_path: Path,
) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    run = "outputs/reference/none-fp32-s0-00000000"
    kept = [
        "outputs/README.md",
        "outputs/reference/README.md",
        f"{run}/record.json",
        "outputs/reference/tables/cells.csv",
        "outputs/reference/tables/comparison.csv",
        "outputs/reference/tables/comparison.md",
        "outputs/reference/tables/comparison.tex",
        "outputs/reference/tables/pictures/throughput-1.png",
    ]
    left = [
        "outputs/matrix/none-fp32-s0-00000000/record.json",
        "outputs/reference/lock",
        "outputs/reference/.analysis-cache/rows",
        "outputs/reference/tables/report.html",
        "outputs/reference/tables/pictures/throughput-1.svg",
        "outputs/reference/tables/pictures/throughput-2.png",
        *(f"{run}/{name}" for name in ("config.yaml", "train.log", "rank1.log", "steps.csv")),
        *(f"{run}/{name}" for name in ("lock", "checkpoints/final.pt", "tensorboard/events.out")),
    ]
    for name in (*kept, *left):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    told = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "--others", "--exclude-standard", "outputs"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert sorted(told.stdout.splitlines()) == sorted(kept)
