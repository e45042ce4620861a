"""`report.html`: complete, self-contained, and safe whatever the records hold."""

import base64
import hashlib
import itertools
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from amp_sweep import record
from analysis import html, page
from analysis.answer import answer
from analysis.compare import compare
from analysis.comparison import Comparison
from analysis.frame import load
from analysis.pictures import Pictures
from tests.analysis import sweeps_to_draw
from tests.analysis.synthetic import write_run

NO_PICTURES = Pictures((), ())
VOID = {"meta", "link", "input", "img", "br", "hr"}

# Each ends one place that text may stand in: a tag, an attribute, a comment, a script, a style.
HOSTILE = (
    "<script>window.hit=1</script>",
    '"><img src=x onerror=window.hit=1>',
    "' onmouseover='window.hit=1",
    "--><svg/onload=window.hit=1>",
    "</script></style></title></textarea><b>x",
    "javascript:window.hit=1",
    "{{ 7*7 }}{% raw %}",
    "a\u202eb\u0000c\u001b[31md",
    "&lt;&amp;",
)


class Tree(HTMLParser):
    """The tags of a page with their attributes, its texts, and whether every tag is closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.broken: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.broken.append(tag)

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def written(
    out: Path, *dirs: Path, problems: tuple[str, ...] = (), drawn: Pictures | None = NO_PICTURES
) -> str:
    frame, found = load(*dirs)
    comparison = compare(frame)
    command = "python -P -m analysis outputs/matrix"
    path = html.write(
        comparison, answer(comparison), frame, [*found, *problems], command, out, drawn
    )
    assert path == out / "report.html"
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sweeps_to_draw.matrix(tmp_path_factory.mktemp("html"))


@pytest.fixture(scope="module")
def text(sweep: Path) -> str:
    return written(sweep / "tables", sweep, problems=("a file <b>was</b> passed over",), drawn=None)


@pytest.fixture(scope="module")
def tree(text: str) -> Tree:
    return Tree(text)


def test_every_tag_is_closed_and_every_id_is_there_once(tree: Tree) -> None:
    assert tree.open == []
    assert tree.broken == []
    counts = Counter(attrs["id"] for _, attrs in tree.tags if "id" in attrs)
    assert counts.total() > 30
    assert {name for name, n in counts.items() if n > 1} == set()


def test_the_answer_stands_before_the_tables_and_the_pictures(text: str) -> None:
    places = [text.index(part) for part in ("Fastest", "Least memory", "<table>", "<img")]
    assert places == sorted(places)


def test_the_page_holds_every_picture_and_asks_for_nothing(tree: Tree) -> None:
    images = tree.all("img")
    assert len(images) == 12
    for image in images:
        assert str(image["src"]).startswith("data:image/svg+xml;base64,")
        assert len(str(image["alt"])) > 60
    addresses = [attrs.get(name) or "" for _, attrs in tree.tags for name in ("src", "href")]
    assert not [a for a in addresses if re.match(r"(?i)(https?:)?//|file:|javascript:", a)]
    styled = [attrs for _, attrs in tree.tags if "style" in attrs]
    assert styled == []


def test_the_policy_lets_in_nothing_but_the_pages_own_style_and_script(text: str) -> None:
    (policy,) = [
        str(attrs["content"])
        for attrs in Tree(text).all("meta")
        if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    assert rules["img-src"] == "data:"
    for tag, name in (("style", "style-src"), ("script", "script-src")):
        (inside,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert rules[name] == f"'sha256-{digest}'"


def test_every_link_inside_the_page_has_a_target(tree: Tree) -> None:
    ids = {attrs["id"] for _, attrs in tree.tags if "id" in attrs}
    inside = [str(a["href"])[1:] for a in tree.all("a") if str(a["href"]).startswith("#")]
    assert len(inside) > 100
    assert set(inside) <= ids


def test_every_link_out_of_the_page_leads_to_a_file_of_a_run(sweep: Path, tree: Tree) -> None:
    links = {str(a["href"]) for a in tree.all("a") if not str(a["href"]).startswith("#")}
    files = {(sweep / "tables" / unquote(link)).resolve() for link in links}
    assert {path for path in files if not path.is_file()} == set()
    assert {path for path in files if path.name == "record.json"} == {
        path.resolve() for path in record.find(sweep)
    }


def test_every_figure_of_a_cell_is_a_link_to_its_runs(text: str) -> None:
    cells = text[text.index('id="cells-1"') : text.index('id="verdicts-1"')]
    figures = re.findall(r'<td class="number" data-sort="[^"]+">(.*?)</td>', cells)
    assert len(figures) == 7 * 6  # cells with figures, and their columns
    assert all(re.fullmatch(r'<a href="#cell-1-\d">[^<]+</a>', found) for found in figures)

    for part in text.split('id="matrix-1-')[1:]:
        matrix = part[: part.index("</table>")]
        links = re.findall(r'<a href="([^"]+)"', matrix)
        assert links == [f"#cell-1-{n}" for n in range(1, 10)]  # of every cell, by its place
        sorts = [float(value) for value in re.findall(r'data-sort="([^"]+)"', matrix)]
        assert len(sorts) == 7
    runs = text[text.index('id="runs"') :]
    runs = runs[: runs.index("</table>")]
    assert len(re.findall(r'<td class="number" data-sort="\d', runs)) == 27 + 4 * 20
    assert "peak MiB" in runs[: runs.index("</thead>")]
    assert "2026-01-01 00:00:00" in runs


def test_rows_of_names_lead_to_the_runs_and_figures_of_notes_to_their_words(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, seed=seed)
        write_run(tmp_path, "ddp", "scaler", seed, metrics={"data_wait_frac": 0.4})
    text = written(tmp_path, tmp_path / "matrix")
    verdicts = text[text.index('id="verdicts-1"') :].partition("</table>")[0]
    links = re.findall(r'<a href="(.*?)"', verdicts)
    assert set(links) == {"#cell-1-4"}
    assert "1  input-bound: " in text
    runs = Tree(text[text.index('id="runs"') :].partition("</table>")[0]).text
    assert runs.count("none fp32") == runs.count("ddp scaler") == 2
    assert "data.normalize yes" in Tree(text).text


def test_a_cell_has_the_colour_of_its_worst_status(tmp_path: Path) -> None:
    write_run(tmp_path)
    for seed, status in enumerate((record.PENDING, record.FAILED)):
        write_run(tmp_path, "dp", seed=seed, status=status)
    text = written(tmp_path, tmp_path / "matrix")
    states = re.findall(r'class="state (\w+)">FAILED 1, PENDING 1', text)
    assert len(states) == 1 + text.count('id="matrix-1-')  # in the cells and in every matrix
    assert set(states) == {"failed"}
    assert "state completed" not in text


def test_runs_show_their_figures_settings_epochs_error_and_place(tree: Tree) -> None:
    assert "RuntimeError: CUDA error: an illegal memory access was encountered" in tree.text
    assert "Traceback (most recent call last):" in tree.text
    assert "optimizer.lr 0.001" in tree.text
    assert "device_names NVIDIA H200, NVIDIA H200" in tree.text
    assert "epoch train_loss test_accuracy" in tree.text


def test_provenance_names_gpu_versions_commit_number_and_date(tree: Tree) -> None:
    provenance = tree.text[tree.text.rindex("Provenance") :]
    for part in (
        "runs 27, 20 of them completed",
        "made 2026-01-01T00:00:00+00:00",
        "CUDA 13.0",
        "PyTorch 2.14.1",
        "commit abcdef0123456",
        "python -P -m analysis outputs/matrix",
    ):
        assert part in provenance
    assert "NVIDIA H200" in tree.text


def test_warnings_and_missing_cells_are_told(tree: Tree) -> None:
    assert "Warnings (1)" in tree.text
    assert "a file <b>was</b> passed over" in tree.text
    assert "Not completed: 4" in tree.text
    assert {"FAILED", "PENDING", "DIVERGED"} <= set(re.findall("[A-Z]{6,}", tree.text))


def test_tables_have_captions_and_their_heads_say_what_they_are_of(tree: Tree) -> None:
    assert len(tree.all("caption")) == len(tree.all("table")) > 5
    assert {attrs["scope"] for attrs in tree.all("th")} == {"col", "row"}
    levels = [int(tag[1]) for tag, _ in tree.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


def hostile_run(root: Path, bad: str) -> Path:
    """A run whose every text is `bad`."""
    run = write_run(root, "none", "fp32", sweep="hostile", gpu=True)
    found = record.read(run / "record.json")
    found.name = bad
    found.cell |= {"model": bad, "data": bad, "precision": bad, "parallel": bad}
    found.overrides = [f"x={bad}", bad]
    found.notes = [bad, f"no effect here: {bad}"]
    found.error = {"type": bad, "message": bad, "traceback": f"{bad}\n{bad}", "rank": 0}
    found.effective |= {"device_names": [bad], "memory_format": bad, bad: bad, "list": [{bad: bad}]}
    found.environment = dict.fromkeys((*found.environment, "gpu", "hostname", "git_commit"), bad)
    found.environment[bad] = bad
    found.metrics |= {bad: bad, "diagnosis": bad, "diagnosis_evidence": bad}
    found.segments = [{"started_at": bad, "ended_at": bad}]
    found.epochs = [{"epoch": 1, "train_loss": bad, "test_accuracy": 0.5, bad: bad}]
    found.config["model"]["name"] = bad
    found.config[bad] = bad
    record.write(run / "record.json", found)
    return run


@pytest.mark.parametrize("bad", HOSTILE)
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_hostile_text_stays_text(tmp_path: Path, bad: str, status: str) -> None:
    run = hostile_run(tmp_path, bad)
    found = record.read(run / "record.json")
    found.status = status
    record.write(run / "record.json", found)
    plain = Tree(written(tmp_path / "plain", write_run(tmp_path, sweep="plain", gpu=True).parent))
    tree = Tree(written(tmp_path / "out", run.parent, problems=(bad,)))
    assert tree.open == tree.broken == []
    assert {tag for tag, _ in tree.tags} <= {tag for tag, _ in plain.tags} | {
        *("pre", "details", "summary", "span", "h4")
    }
    attributes = {name for _, attrs in tree.tags for name in attrs}
    assert not {name for name in attributes if name.startswith("on") or name == "style"}
    assert len(tree.all("script")) == len(tree.all("style")) == 1
    for link in tree.all("a"):
        assert re.match(r"#|\.\./|[\w%.-]+/", str(link["href"])), link
    shown = html._printable(bad)
    assert str(shown).replace(" ", "") in tree.text.replace(" ", "")
    assert not re.search("[\u0000-\u0008\u000e-\u001f\u202a-\u202e]", " ".join(tree.texts))


def test_hostile_directory_names_are_encoded_in_links(tmp_path: Path) -> None:
    run = write_run(tmp_path, sweep="plain")
    other = tmp_path / 'a"b <c>#d?e%20f' / "javascript:alert(1)"
    other.parent.mkdir()
    run.rename(other)
    tree = Tree(written(other.parent / "tables", other.parent))
    (link,) = {str(a["href"]) for a in tree.all("a") if "record.json" in str(a["href"])}
    assert link == "../javascript%3Aalert%281%29/record.json"
    tree = Tree(written(tmp_path / "out", other.parent))
    (link,) = {str(a["href"]) for a in tree.all("a") if "record.json" in str(a["href"])}
    assert (tmp_path / "out" / unquote(link)).resolve() == (other / "record.json").resolve()


def test_a_record_with_half_a_character_can_be_written(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    path = run / "record.json"
    path.write_text(path.read_text().replace('"notes": []', '"notes": ["half \\ud83d"]'))
    assert "half \N{REPLACEMENT CHARACTER}" in Tree(written(tmp_path, run)).text


def test_a_record_that_is_gone_since_it_was_loaded_costs_only_its_details(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    frame, problems = load(run)
    (run / "record.json").unlink()
    comparison = compare(frame)
    path = html.write(comparison, answer(comparison), frame, problems, "c", tmp_path, NO_PICTURES)
    assert "Not readable any more" in path.read_text()


def test_several_sweeps_stand_in_one_report(tmp_path: Path) -> None:
    for name, size in (("one", 64), ("two", 32)):
        settings = {"data.image_size": size}
        write_run(tmp_path, sweep=name, settings=settings, overrides=(f"data.image_size={size}",))
    text = written(tmp_path, tmp_path / "one", tmp_path / "two", drawn=None)
    tree = Tree(text)
    assert text.count("<img") == 2 * 5  # each picture once, and what there is none of is told
    assert "fewer than two cells have a speed and a peak memory" in tree.text
    assert tree.text.count("data.image_size=32") >= 2
    assert len({a["href"] for a in tree.all("a") if str(a["href"]).startswith("#table-")}) == 2
    assert "sweep parallel precision seed status" in tree.text


def test_a_sweep_in_which_nothing_is_completed_says_so(tmp_path: Path) -> None:
    write_run(tmp_path, status=record.PENDING)
    assert "No cell has figures yet." in Tree(written(tmp_path, tmp_path / "matrix")).text


def test_runs_beyond_the_limits_keep_a_link_to_their_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "MOST_DETAILS", 2)
    monkeypatch.setattr(page, "MOST_ROWS", 3)
    for seed in range(4):
        write_run(tmp_path, seed=seed)
    tree = Tree(written(tmp_path, tmp_path / "matrix"))
    assert len([a for a in tree.all("details") if a.get("class") == "run"]) == 2
    assert "Not here: details of 2 further runs" in tree.text
    assert "Not here: 1 further runs: see cells.csv" in tree.text
    outside = [a for a in tree.all("a") if str(a["href"]).endswith("record.json")]
    assert len({a["href"] for a in outside}) == 3


def test_the_same_runs_give_the_same_page_but_for_its_time(tmp_path: Path) -> None:
    write_run(tmp_path)
    first, second = (written(tmp_path, tmp_path / "matrix") for _ in range(2))
    times = re.compile(r"this report</dt><dd>[^<,]*")
    assert times.sub("", first) == times.sub("", second)


def test_a_picture_has_a_light_and_a_dark_face() -> None:
    svg = '<?xml version="1.0"?>\n<svg width="1">\n<!-- x --><path style="fill: #1b1c20"/></svg>'
    assert html.themed(svg) == (
        '<?xml version="1.0"?> <svg width="1"><style>:root{--1b1c20:#1b1c20;}'
        "@media(prefers-color-scheme:dark){:root{--1b1c20:#e7e8ec;}}</style>"
        '  <path style="fill: var(--1b1c20)"/></svg>'
    )


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_enough_contrast_on_every_ground(theme: int) -> None:
    css = (html.ASSETS / "report.css").read_text()
    block = re.findall(r":root \{(.*?)\}", css, re.DOTALL)[theme]
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
    for text in ("ink", "muted", "link", "bad", "wait"):
        for ground in ("paper", "panel"):
            low, high = sorted((luminance(colours[text]), luminance(colours[ground])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)


def test_comparison_is_only_read(sweep: Path, tmp_path: Path) -> None:
    frame, _ = load(sweep)
    comparison: Comparison = compare(frame)
    before: pd.DataFrame = frame.copy(deep=True)
    html.write(comparison, answer(comparison), frame, [], "c", tmp_path, NO_PICTURES)
    pd.testing.assert_frame_equal(frame, before)
