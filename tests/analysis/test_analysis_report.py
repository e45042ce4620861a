import csv
import importlib.util
import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pandas as pd
import pytest
from rich.console import Console

import analysis
from amp_sweep import record
from analysis import options, terminal
from analysis.__main__ import main
from analysis.answer import answer
from analysis.compare import compare
from analysis.frame import load
from analysis.markup import html, latex, latex_escape, markdown, markdown_escape
from analysis.texts import matrices
from tests.analysis.synthetic import TRUTHS, write_sweep
from tests.conftest import python_path

Make = Callable[..., Path]

BOOM = {"type": "RuntimeError", "message": "bad | [red]x[/red] a_b 100%", "rank": 1}
HOLES: dict[tuple[str, str], dict[str, Any] | None] = {
    ("none", "autocast"): {"metrics": {"data_wait_frac": 0.4}},
    ("dp", "autocast"): None,
    ("dp", "scaler"): {"status": "failed", "error": BOOM},
    ("ddp", "scaler"): {"status": "pending"},
}


def shown(width: int, *dirs: Path) -> str:
    frame, problems = load(*dirs)
    printed = io.StringIO()
    comparison = compare(frame)
    screen = Console(width=width, highlight=False, file=printed)
    terminal.show(comparison, answer(comparison), problems, screen)
    return printed.getvalue()


def rows_of(text: str, first: str) -> list[str]:
    return [re.sub(" +", " ", line).strip() for line in text.splitlines() if line.startswith(first)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.042, "0.04 s"),
        (0.996, "1.0 s"),
        (6.21, "6.2 s"),
        (59.96, "1 m 00 s"),
        (65, "1 m 05 s"),
        (3599.6, "1 h 00 m 00 s"),
        (3725, "1 h 02 m 05 s"),
        (180000, "50 h 00 m 00 s"),
    ],
)
def test_durations_are_readable_and_round_without_a_sixtieth_second(
    seconds: float, text: str
) -> None:
    assert record.duration(seconds) == text


def test_failed_and_pending_cells_are_shown_and_what_nobody_asked_for_is_a_dash(
    make_matrix: Make,
) -> None:
    text = shown(120, make_matrix(but=HOLES))
    assert "6 of 8 cells completed" in text
    assert "dp scaler FAILED" in rows_of(text, "dp")
    assert "ddp scaler PENDING" in rows_of(text, "ddp")
    assert "dp autocast - - - - - - -" in rows_of(text, "dp")
    assert "none fp32 1 8.0 s 2,000 1.00x 600 0.9700 3%" in rows_of(text, "none")
    assert "none autocast 1 4.0 s 4,000 2.00x 600 0.9700 40% 1" in rows_of(text, "none")
    assert "1  input-bound" in text
    assert "RuntimeError: bad | [red]x[/red] a_b 100%" in text


@pytest.mark.parametrize(
    "status", ["failed", "oom", "invalid", "diverged", "interrupted", "timeout", "running"]
)
def test_each_status_stands_in_its_cell_in_capitals(make_run: Make, status: str) -> None:
    make_run()
    text = shown(80, make_run("ddp", status=status).parent)
    assert f"ddp fp32 {status.upper()}" in rows_of(text, "ddp")


@pytest.mark.parametrize("gpu", [False, True])
def test_the_tables_fit_on_eighty_columns_with_repeats_and_notes(
    make_matrix: Make, gpu: bool
) -> None:
    for seed in (0, 1, 2):
        sweep = make_matrix(
            seed=seed, gpu=gpu, but=HOLES, metrics={"images_per_s": 28000.0 + 9 * seed}
        )
    text = shown(80, sweep)
    grid = text[: text.index("dp x scaler, seed 0")]
    assert max(len(line.rstrip()) for line in grid.splitlines()) <= 80
    assert "…" not in grid
    assert "autocast" in grid


def test_nothing_is_cut_off_on_a_screen_that_is_too_narrow(make_matrix: Make) -> None:
    text = shown(40, make_matrix())
    assert "…" not in text
    assert "0.9700" in text


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("status", [record.COMPLETED, record.PENDING, record.FAILED])
def test_no_two_empty_lines_follow_each_other(make_matrix: Make, status: str, width: int) -> None:
    lines = [line.strip() for line in shown(width, make_matrix(status=status)).splitlines()]
    assert not any(one == other == "" for one, other in itertools.pairwise(lines))


def test_why_there_are_no_speed_ups_is_told_once_per_table(make_matrix: Make) -> None:
    sweep = make_matrix(but={("none", "fp32"): {"status": "failed"}})
    why = "the baseline none x fp32 is FAILED"
    assert shown(200, sweep).count(why) == 1
    comparison = compare(load(sweep)[0])
    assert markdown(comparison, answer(comparison), [], "c").count(why) == 1
    assert html(comparison, answer(comparison), [], "c").count(why) == 1
    assert latex(comparison, answer(comparison), "c").count(why) == 1


@pytest.mark.parametrize(("device", "heading"), [("cpu", "procs"), ("auto", "devices")])
def test_runs_that_reached_no_device_are_not_said_to_have_gpus(
    make_run: Make, device: str, heading: str
) -> None:
    sweep = make_run(status="invalid", settings={"device": device}).parent
    printed = shown(120, sweep)
    assert heading in printed
    assert "GPUs" not in printed


def test_one_run_shows_no_spread_and_three_show_mean_spread_and_n(make_run: Make) -> None:
    for seed in (0, 1, 2):
        sweep = make_run(seed=seed).parent
    assert "none fp32 3 1 8.1 s ± 0.10 s" in rows_of(shown(120, sweep), "none")[0]
    run = make_run("ddp", sweep="alone")
    comparison = compare(load(run)[0])
    assert "Matrices" not in markdown(comparison, answer(comparison), [], "c")  # of one cell
    alone = shown(120, run)
    assert "±" not in alone
    assert " n " not in alone.splitlines()[5]


def test_memory_is_labelled_by_what_it_is(make_run: Make) -> None:
    on_cpu = shown(120, make_run(sweep="a"))
    on_gpu = shown(120, make_run(sweep="b", gpu=True))
    assert "RSS MiB: peak memory of the largest process" in on_cpu
    assert "peak MiB: memory allocated by PyTorch on the fullest device" in on_gpu


def test_the_articles_figures_stand_beside_ours_with_their_provenance(
    make_matrix: Make, article: dict[str, Any]
) -> None:
    sweep = make_matrix(gpu=True, settings=article, metrics={"train_time_s": 126.0})
    frame, problems = load(sweep)
    comparison = compare(frame)
    said = answer(comparison)
    for text in (
        shown(120, sweep).replace("\n", " "),
        markdown(comparison, said, problems, "x"),
        latex(comparison, said, "x"),
    ):
        flat = re.sub(r"[|&\\ ]+", " ", text)
        assert "none scaler 2 m 06 s 27 min 0.9700 not given" in flat
        assert "dp scaler 2 m 06 s not given 0.9700 0.8409" in flat
        assert "one RTX 2060 laptop GPU, world size 1, one run each" in flat


ODD: list[Any] = [None, True, -1, 0, 1.5, 10**400, 2**63, "", "x|y", "[b]", "\x1b[31m\ud800"]
ODD += ["a\nb", [], [None], [1, "a"], [[1]], {}, {"a": {"b": [1]}}]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    if isinstance(value, dict | list):
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*at, name))


@pytest.mark.parametrize("first", [0, 5, 11])
def test_no_value_in_any_field_of_a_record_stops_the_program(
    make_run: Make, tmp_path: Path, first: int
) -> None:
    """A run per field, with an odd value there in turn; all of them in one sweep."""
    error = {"type": "E", "message": "m", "rank": 0, "exitcode": 1}
    run = make_run("ddp", gpu=True, notes=("no effect here: x",), error=error)
    text = (run / "record.json").read_text()
    for number, (*outer, last) in enumerate(places(json.loads(text))):
        changed = json.loads(text)
        inner = changed
        for name in outer:
            inner = inner[name]
        inner[last] = ODD[(first + number) % len(ODD)]
        changed["fingerprint"] = changed["fingerprint"] if last == "fingerprint" else f"{number}"
        path = tmp_path / "odd" / f"r{number}" / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(changed))
    assert main([str(tmp_path / "odd"), "--no-pictures"]) == 0


def test_markdown_shows_text_as_it_is() -> None:
    assert markdown_escape("a|b*c_d _e_ <f> [g]") == r"a\|b\*c_d \_e\_ \<f\> \[g\]"
    assert markdown_escape("~a~ $b$ &c; `d` \\") == r"\~a\~ \$b\$ \&c; \`d\` \\"


def test_markdown_shows_what_records_hold_as_it_is(make_matrix: Make) -> None:
    evil = "a <i>|"
    error = {"type": "E", "message": evil, "rank": 0}
    but = {("dp", "fp32"): {"status": "failed", "error": error}}
    made = make_matrix(but=but, notes=(f"no effect here: {evil}",), settings={"model.name": evil})
    comparison = compare(load(made)[0])
    lines = markdown(comparison, answer(comparison), [evil], "c").splitlines()
    starts = ("## a", "1. no effect", "- dp x fp32, seed 0: FAILED", "- Warning: a")
    for start in starts:
        [line] = [line for line in lines if line.startswith(start)]
        assert r"a \<i\>\|" in line and "<i>" not in line


def test_latex_shows_text_as_it_is() -> None:
    assert latex_escape(r"50% a_b & #1 $x$ {y} \z ~ ^") == (
        r"50\% a\_b \& \#1 \$x\$ \{y\} \textbackslash{}z \textasciitilde{} \textasciicircum{}"
    )
    assert latex_escape("--baseline [x]") == "-{}-baseline {[}x{]}"
    assert latex_escape('<a> | "b" `c` d* ±') == (
        r"\textless{}a\textgreater{} \textbar{} \textquotedbl{}b\textquotedbl{} "
        r"\textasciigrave{}c\textasciigrave{} d{*} $\pm$"
    )


def test_latex_tables_are_whole_whatever_the_records_hold(make_matrix: Make) -> None:
    evil = "no effect here: 100% of {x & y}_z $ # ~ ^ \\end{table}"
    sweep = make_matrix(settings={"model.name": "my_pkg.nets:b&w"}, notes=(evil,))
    comparison = compare(load(sweep)[0])
    text = latex(comparison, answer(comparison), "python -P -m analysis x\nevil")
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert sum(line == r"\end{table}" for line in body) == 1
    bare = re.sub(r"\\[{}%&_$#\\]", "", "\n".join(body))
    assert bare.count("{") == bare.count("}")
    assert not set("%$#_") & set(bare)
    columns = len(re.findall(r"[lr]", bare.split("tabular}{")[1].split("}")[0]))
    rows = [line for line in body if line.endswith(r"\\")]
    assert len(rows) == 10
    assert all(len(re.findall(r"(?<!\\)&", row)) == columns - 1 for row in rows)
    assert "evil" not in "".join(body)


def test_the_program_prints_and_writes_every_table(
    make_matrix: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_matrix(but=HOLES)
    assert main([str(sweep), "--no-pictures"]) == 0
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out
    assert printed.err == ""
    assert f"Written to {sweep / 'tables'}" in printed.out
    assert sorted(path.name for path in (sweep / "tables").iterdir()) == [
        "cells.csv",
        "comparison.csv",
        "comparison.md",
        "comparison.tex",
    ]
    assert main([str(sweep), "--no-pictures"]) == 0  # the folder of tables is no run


def test_the_long_table_has_a_row_per_cell_with_its_reason(make_matrix: Make) -> None:
    sweep = make_matrix(but=HOLES)
    main([str(sweep), "--no-pictures"])
    with (sweep / "tables" / "comparison.csv").open(newline="") as file:
        rows = {(row["parallel"], row["precision"]): row for row in csv.DictReader(file)}
    assert len(rows) == 9
    done = rows["ddp", "fp32"]
    assert (done["status"], done["n"], done["devices"]) == ("completed", "1", "2")
    assert (done["speedup"], done["images_per_s_mean"]) == ("2.0", "4000.0")
    assert done["images_per_s_sd"] == ""
    assert rows["dp", "scaler"]["status"] == "failed"
    assert rows["dp", "scaler"]["no_speedup"] == "not completed"
    assert rows["dp", "autocast"]["status"] == "-"
    assert rows["dp", "autocast"]["runs"] == "0"


def test_cells_csv_has_a_line_per_run_and_the_swept_axis(make_matrix: Make) -> None:
    for batch in (64, 128):
        sweep = make_matrix(
            settings={"data.batch_size": batch}, overrides=(f"data.batch_size={batch}",), but=HOLES
        )
    assert main([str(sweep), "--no-pictures"]) == 0
    tables = sweep / "tables"
    assert len((tables / "cells.csv").read_text().splitlines()) == 17
    cells = pd.read_csv(tables / "cells.csv", dtype_backend="numpy_nullable")
    assert sorted(cells["data.batch_size"].unique()) == [64, 128]
    assert cells["seed"].dtype == "Int64"
    long = pd.read_csv(tables / "comparison.csv")
    assert sorted(long["data.batch_size"].unique()) == [64, 128]


def test_bad_files_are_named_on_the_screen_and_the_exit_status_is_zero(
    make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_run(status="failed").parent
    (sweep / "bad").mkdir()
    (sweep / "bad" / "record.json").write_text("{")
    assert main([str(sweep), "--no-pictures"]) == 0
    assert f"Warning: {sweep / 'bad' / 'record.json'}: not a record" in capsys.readouterr().out


def test_nothing_to_show_is_status_one_with_what_is_expected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "nowhere"), "--no-pictures"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no such directory" in printed.err
    assert "outputs/NAME" in printed.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [[], ["x", "--baseline", "fp32"], ["x", "--baseline", ","], ["x", "--wrong"]]
)
def test_wrong_usage_is_status_two(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_a_baseline_that_is_not_there_is_wrong_usage(
    make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(make_run()), "--baseline", "none,fp46"])
    assert ended.value.code == 2
    assert "there are: none,fp32" in capsys.readouterr().err


def test_the_baseline_option_reaches_the_tables(
    make_matrix: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(make_matrix()), "--baseline", "ddp, fp32", "--no-pictures"]) == 0
    assert "speed-up: images/s over those of ddp x fp32" in capsys.readouterr().out


def test_where_the_tables_cannot_be_written_they_are_printed_and_the_status_is_one(
    make_matrix: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("kept")
    assert main([str(make_matrix()), "--out", str(blocked / "tables"), "--no-pictures"]) == 1
    printed = capsys.readouterr()
    assert "9 of 9 cells completed" in printed.out
    assert f"could not be written to {blocked / 'tables'}" in printed.err
    assert blocked.read_text() == "kept"


def test_it_runs_as_a_process_into_a_closed_pipe_and_without_unicode(make_matrix: Make) -> None:
    sweep = make_matrix(seed=1)
    make_matrix(seed=2)
    root = Path(analysis.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": python_path(root), "PYTHONIOENCODING": "ascii"}
    command = f'"{sys.executable}" -P -m analysis "{sweep}" | head -n 2'
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, env=environment, check=False
    )
    assert "Traceback" not in done.stderr
    assert "18 of 18 cells completed" in done.stdout
    assert (sweep / "tables" / "comparison.tex").exists()
    assert (sweep / "tables" / "report.html").exists()


def test_verdicts_and_failures_have_colours_where_the_terminal_has(tmp_path: Path) -> None:
    frame, problems = load(write_sweep(tmp_path, TRUTHS, 3))
    comparison = compare(frame)
    printed = io.StringIO()
    to = Console(width=200, force_terminal=True, color_system="standard", file=printed)
    terminal.show(comparison, answer(comparison), problems, to)
    text = printed.getvalue()
    assert "\x1b[32m" in next(line for line in text.splitlines() if "faster" in line)
    assert "\x1b[31m" in next(line for line in text.splitlines() if "slower" in line)
    assert "\x1b[1;31m" in next(
        line for line in text.splitlines() if "FAILED" in line and "0/3" in line
    )


def test_the_answer_comes_before_the_tables(tmp_path: Path) -> None:
    text = shown(120, write_sweep(tmp_path, TRUTHS, 3))
    assert text.index("Fastest:") < text.index("Best trade-off:") < text.index("input wait")


@pytest.mark.parametrize(
    ("formats", "names"),
    [
        ("csv", ["cells.csv", "comparison.csv"]),
        ("html,parquet", ["cells.parquet", "comparison.html"]),
        ("md, tex", ["comparison.md", "comparison.tex"]),
    ],
)
def test_the_formats_asked_for_are_written(
    make_matrix: Make, formats: str, names: list[str]
) -> None:
    sweep = make_matrix(but=HOLES)
    assert main([str(sweep), "--no-pictures", "--format", formats]) == 0
    assert sorted(path.name for path in (sweep / "tables").iterdir()) == names


def test_parquet_holds_the_rows_with_their_types(make_matrix: Make) -> None:
    sweep = make_matrix(but=HOLES)
    main([str(sweep), "--no-pictures", "--format", "parquet"])
    cells = pd.read_parquet(sweep / "tables" / "cells.parquet")
    pd.testing.assert_frame_equal(cells, load(sweep)[0])


def test_an_unknown_format_is_wrong_usage_and_names_those_there_are(
    make_run: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([str(make_run()), "--format", "xlsx"])
    assert ended.value.code == 2
    assert "there are: csv, parquet, md, tex, html" in capsys.readouterr().err


def test_parquet_without_its_package_is_refused_before_any_work(
    make_run: Make, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        main([str(run), "--format", "parquet"])
    assert ended.value.code == 2
    assert "parquet needs pyarrow: pip install pyarrow" in capsys.readouterr().err


def test_the_fragment_of_html_is_well_formed_and_escapes_what_records_hold(
    make_matrix: Make,
) -> None:
    evil = "no effect here: <script>alert(1)</script> & --> <b>"
    sweep = make_matrix(but=HOLES, notes=(evil,), settings={"model.name": "a:<i>"})
    frame, problems = load(sweep)
    comparison = compare(frame)
    made = html(comparison, answer(comparison), [*problems, "b.json: <b>"], "analysis --> <x>")
    tree = ElementTree.fromstring(f"<body>{made}</body>")  # XML: every tag closed, once
    assert {element.tag for element in tree.iter()} <= {
        *("body", "section", "h2", "p", "ul", "li", "b"),
        *("table", "thead", "tbody", "tr", "th", "td"),
    }
    rows = tree.findall("section/table/tbody/tr")
    assert len(rows) == 9
    assert any("<script>alert(1)</script>" in (p.text or "") for p in tree.iter("p"))
    assert tree.findall("p")[-1].text == "Warning: b.json: <b>"


def test_pictures_and_the_page_are_written_unless_refused(make_matrix: Make) -> None:
    sweep = make_matrix(but=HOLES)
    assert main([str(sweep)]) == 0
    there = {path.name for path in (sweep / "tables").iterdir()}
    assert {"report.html", "pictures"} <= there


def test_energy_has_a_matrix_where_it_was_measured(make_matrix: Make) -> None:
    sweep = make_matrix(metrics={"energy_j": 12_345.0})
    [table] = compare(load(sweep)[0]).tables
    assert "energy_j" in matrices(table)
    assert "12,345" in shown(120, sweep)


def test_every_command_in_the_documentation_is_one_that_the_program_takes() -> None:
    root = Path(analysis.__file__).parents[1]
    text = "\n".join(
        [(root / "docs" / "analysis.md").read_text(), (root / "README.md").read_text()]
    )
    text += options.EXAMPLES.replace("%(prog)s", "python -P -m analysis")
    found = re.findall(r"^.*python (?:-P )?-m analysis (.*)$", text, re.M)
    assert len(found) > 10
    for line in found:
        words = line.split("#")[0].split("`")[0]
        words = re.sub(r"\[([^\]]*?) ?\.\.\.\]", r"\1", words)  # [outputs/NAME ...]
        arguments = options.parser().parse_args(shlex.split(words))
        assert arguments.dirs
