"""Pictures: what they show, that their labels stand apart, and that they can be read by anybody."""

import io
import itertools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from amp_sweep import record
from analysis import answer, pictures
from analysis.compare import compare
from analysis.comparison import Comparison
from analysis.frame import load
from analysis.pictures import Picture, bars, cells, curves, stacks, style
from tests.analysis import sweeps_to_draw
from tests.analysis.synthetic import write_run

Loaded = tuple[Comparison, pd.DataFrame]
Box = tuple[float, float, float, float]

KINDS = [
    "throughput",
    "pareto",
    "heatmap-speed",
    "heatmap-time",
    "heatmap-memory",
    "heatmap-accuracy",
    "heatmap-energy",
    "memory",
    "time",
    "training",
    "time-to-accuracy",
    "step-times",
]


def loaded(directory: Path) -> Loaded:
    frame, problems = load(directory)
    assert problems == []
    return compare(frame), frame


@pytest.fixture(scope="module")
def nine(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return loaded(sweeps_to_draw.matrix(tmp_path_factory.mktemp("nine")))


@pytest.fixture(scope="module")
def twentyfive(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return loaded(sweeps_to_draw.large(tmp_path_factory.mktemp("twentyfive")))


@pytest.fixture(scope="module")
def drawn(nine: Loaded) -> dict[str, Picture]:
    return {picture.name: picture for picture in pictures.draw(*nine).pictures}


class Recorder(RendererAgg):
    """Draws, and keeps every text with its box in pixels: left, bottom, right, top."""

    def __init__(self, wide: float, high: float, dpi: float) -> None:
        super().__init__(wide, high, dpi)
        self.texts: list[tuple[str, Box]] = []

    def draw_text(
        self, gc: Any, x: Any, y: Any, s: Any, prop: Any, angle: Any, *rest: Any, **more: Any
    ) -> None:
        wide, high, descent = self.get_text_width_height_descent(s, prop, False)
        turned = angle % 180 == 90
        # The origin is the upper left corner; x and y are where the base line begins.
        top = self.height - y
        box = (
            (x - high, top, x + descent, top + wide)
            if turned
            else (x, top - descent, x + wide, top - descent + high)
        )
        self.texts.append((s, box))
        super().draw_text(gc, x, y, s, prop, angle, *rest, **more)


def texts_of(figure: Figure) -> tuple[list[tuple[str, Box]], tuple[float, float]]:
    """Every text that a figure really draws, and the size of the figure in pixels."""
    wide, high = figure.get_size_inches() * figure.dpi
    recorder = Recorder(wide, high, figure.dpi)
    with style.settings():
        figure.draw(recorder)
    return [item for item in recorder.texts if item[0].strip()], (wide, high)


def collisions(figure: Figure) -> list[str]:
    """Texts that overlap one another, or that the edge of the figure cuts off."""
    texts, (wide, high) = texts_of(figure)
    found = [
        f"{one!r} over {other!r}"
        for (one, a), (other, b) in itertools.combinations(texts, 2)
        if min(a[2], b[2]) - max(a[0], b[0]) > 0.5 and min(a[3], b[3]) - max(a[1], b[1]) > 0.5
    ]
    return found + [
        f"{text!r} beyond the edge"
        for text, (left, bottom, right, top) in texts
        if left < 0 or bottom < 0 or right > wide or top > high
    ]


@pytest.fixture
def two_texts() -> Iterator[Figure]:
    with style.settings():
        figure = Figure(figsize=(2, 2), dpi=100)
        figure.text(0.5, 0.5, "one")
        yield figure


@pytest.mark.parametrize(
    ("x", "y", "angle", "expected"),
    [
        (0.55, 0.52, 0, ["'one' over 'two'"]),
        (0.53, 0.4, 90, ["'one' over 'two'"]),
        (0.5, 0.7, 0, []),
        (0.9, 0.2, 0, ["'two' beyond the edge"]),
    ],
)
def test_the_check_of_labels_sees_what_overlaps(
    two_texts: Figure, x: float, y: float, angle: float, expected: list[str]
) -> None:
    two_texts.text(x, y, "two", rotation=angle)
    assert collisions(two_texts) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_no_labels_overlap_in_the_pictures_of_nine_cells(
    drawn: dict[str, Picture], kind: str
) -> None:
    assert len(texts_of(drawn[kind].figure)[0]) > 10
    assert collisions(drawn[kind].figure) == []


@pytest.fixture(scope="module")
def drawn_large(twentyfive: Loaded) -> dict[str, Picture]:
    return {picture.name: picture for picture in pictures.draw(*twentyfive).pictures}


@pytest.mark.parametrize("kind", KINDS)
def test_no_labels_overlap_in_the_pictures_of_25_cells_with_long_names(
    drawn_large: dict[str, Picture], kind: str
) -> None:
    figure = drawn_large[kind].figure
    assert collisions(figure) == []
    joined = "".join(text for text, _ in texts_of(figure)[0]).replace(" ", "")
    for name in (*sweeps_to_draw.LONG_PRECISIONS, "ddp(devices=8)"):
        assert name in joined  # wrapped, and never cut off


def test_panels_below_each_other_all_name_their_axis(drawn_large: dict[str, Picture]) -> None:
    named = [axes.get_ylabel() for axes in drawn_large["training"].figure.axes if axes.get_ylabel()]
    assert named == ["training loss", "test accuracy"] * 2  # five parallelisms, three in a row


def test_every_picture_is_written_as_png_and_svg_with_a_page_of_words(
    nine: Loaded, tmp_path: Path
) -> None:
    files = pictures.write(*nine, tmp_path)
    assert sorted(path.name for path in files) == sorted(
        [*(f"{kind}.{suffix}" for kind in KINDS for suffix in ("png", "svg")), "captions.md"]
    )
    for path in files:
        assert path.parent == tmp_path / "pictures"
        if path.suffix == ".svg":
            assert ET.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
        elif path.suffix == ".png":
            assert imread(path).shape[0] > 200
    words = (tmp_path / "pictures" / "captions.md").read_text()
    assert len(re.findall("^- ", words, re.MULTILINE)) == len(KINDS)


def one_picture(nine: Loaded) -> Picture:
    comparison, frame = nine
    with style.settings():
        found = cells.of_tables(comparison, frame)[0]
        figure = bars.throughput(comparison.tables[0], found, "")
    return Picture("one", 0, "", "", figure)


def test_the_same_figures_give_the_same_files(nine: Loaded) -> None:
    first, second = (one_picture(nine) for _ in range(2))
    assert first.svg == second.svg
    assert first.png() == second.png()


def test_words_tell_every_figure_and_every_missing_cell(drawn: dict[str, Picture]) -> None:
    alt = drawn["throughput"].alt
    assert re.search(r"none x autocast: 16,[0-9]{3} images/s", alt)
    assert "dp x scaler: FAILED" in alt
    assert "ddp x autocast: PENDING" in alt
    for kind, words in (
        ("memory", r"none x fp32: parameters 233 MiB, gradients 233 MiB, optimizer state 466 MiB"),
        ("time", r"none x fp32: compute 58%, memory traffic 20%, communication 0%"),
        ("heatmap-energy", r"none x fp32: 26\.\d kJ"),
        ("heatmap-memory", r"none x fp32: 1,514 MiB"),
        ("pareto", r"none x fp32: 9,\d{3} images/s, 1,514 MiB, accuracy 0\.8\d{3}"),
        ("time-to-accuracy", r"none x fp32: 1 m \d\d s, accuracy 0\.8\d{3}"),
        ("step-times", r"none x fp32: 7\.\d\d ms, 8\.\d\d, 11\.\d;"),
    ):
        assert re.search(words, drawn[kind].alt), drawn[kind].alt


@pytest.mark.parametrize(
    "kind", ["throughput", "pareto", "heatmap-time", "memory", "time", "training", "step-times"]
)
def test_cells_without_figures_are_shown_as_such(drawn: dict[str, Picture], kind: str) -> None:
    shown = " ".join(text for text, _ in texts_of(drawn[kind].figure)[0])
    assert "FAILED" in shown
    assert "PENDING" in shown


@pytest.mark.parametrize("kind", ["throughput", "heatmap-time", "training"])
def test_seeds_that_are_lost_are_counted_beside_a_cell_that_has_others(
    drawn: dict[str, Picture], kind: str
) -> None:
    assert "DIVERGED 1" in " ".join(text for text, _ in texts_of(drawn[kind].figure)[0])


def test_what_no_run_recorded_is_left_out_with_the_reason(tmp_path: Path) -> None:
    write_run(tmp_path)
    found = pictures.draw(*loaded(tmp_path / "matrix"))
    assert [picture.name for picture in found.pictures] == [
        *("throughput", "heatmap-speed", "heatmap-time", "heatmap-memory", "heatmap-accuracy")
    ]
    assert "alexnet on digits, training curves: no run has finished an epoch" in found.left_out
    assert any("no run recorded memory_parameters_mib" in text for text in found.left_out)
    *_, words = pictures.save(found, tmp_path)
    assert words.read_text().count("\n- not drawn: ") == len(found.left_out) == 7
    for picture in found.pictures:  # of one seed
        assert "seeds" not in " ".join(text for text, _ in texts_of(picture.figure)[0])


def test_a_sweep_in_which_nothing_is_completed_draws_without_an_error(tmp_path: Path) -> None:
    for status in (record.PENDING, record.FAILED, record.INVALID):
        write_run(tmp_path, "none", status, status=status)
    found = pictures.draw(*loaded(tmp_path / "matrix"))
    assert [picture.name for picture in found.pictures] == ["throughput"]
    assert collisions(found.pictures[0].figure) == []


def test_tables_beyond_the_first_ones_are_counted_and_not_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "MOST_TABLES", 2)
    for size in range(4):
        settings = {"data.image_size": 64 + size}
        write_run(tmp_path, settings=settings, overrides=(f"data.image_size={64 + size}",))
    found = pictures.draw(*loaded(tmp_path / "matrix"))
    assert {picture.table for picture in found.pictures} == {0, 1}
    assert "2 further tables are not drawn" in found.left_out
    names = [picture.name for picture in found.pictures]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("text", ["a$b$c", "a_{b}^2 \\alpha", "日本語", "<b>&amp;\"'", "%s {}"])
def test_names_are_drawn_as_they_are_and_warn_of_nothing(tmp_path: Path, text: str) -> None:
    write_run(tmp_path, "none", "fp32")
    write_run(tmp_path, "none", text)
    for picture in pictures.draw(*loaded(tmp_path / "matrix")).pictures:
        shown = "".join(found for found, _ in texts_of(picture.figure)[0])
        expected = "".join("□" if ord(c) > 0x3000 else c for c in text)
        assert expected.replace(" ", "") in shown.replace(" ", "")
        ET.parse(io.StringIO(picture.svg))


def test_drawing_leaves_matplotlibs_settings_as_they_were(nine: Loaded) -> None:
    with matplotlib.rc_context({"font.size": 31, "text.usetex": True}):
        one_picture(nine).png()
        assert matplotlib.rcParams["font.size"] == 31
        assert matplotlib.rcParams["text.usetex"] is True


def test_the_users_own_settings_change_no_picture(nine: Loaded) -> None:
    usual = one_picture(nine).png()
    with matplotlib.rc_context({"font.size": 31, "axes.facecolor": "red", "lines.linewidth": 9}):
        assert one_picture(nine).png() == usual


def heights(figure: Figure) -> dict[str, float]:
    """The length of each bar by its label, from what matplotlib holds."""
    axes = figure.axes[0]
    places = zip(axes.get_yticks(), axes.get_yticklabels(), strict=True)
    names = {round(float(y), 6): label.get_text() for y, label in places}
    return {
        names[round(patch.get_y() + patch.get_height() / 2, 6)]: patch.get_width()
        for patch in axes.patches
    }


def test_bars_are_as_long_as_the_means(nine: Loaded, drawn: dict[str, Picture]) -> None:
    frame = nine[1]
    done = frame[frame["status"] == "completed"]
    means = done.groupby(["parallel", "precision"])["images_per_s"].mean()
    expected = {f"{p} x {q}": pytest.approx(value) for (p, q), value in means.items()}
    assert heights(drawn["throughput"].figure) == expected


def test_a_bar_bears_its_interval_its_mean_and_its_speed_up(
    nine: Loaded, drawn: dict[str, Picture]
) -> None:
    table, figure = nine[0].tables[0], drawn["throughput"].figure
    axes = figure.axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [f"{p} x {q}" for p, q in table.cells]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first is on top
    assert axes.get_xlim()[0] == 0
    written = {text.get_position()[1]: text.get_text() for text in axes.texts}
    begins = {text.get_position()[1]: text.get_position()[0] for text in axes.texts}
    spans = {np.asarray(line.get_ydata())[0]: np.asarray(line.get_xdata()) for line in axes.lines}
    looks = {}
    for y, cell in zip(axes.get_yticks(), table.cells.values(), strict=True):
        found = cell.figures["images_per_s"]
        if found.mean is None or found.interval is None or cell.speedup is None:
            continue
        assert written[y].startswith(f"{found.mean:,.0f}   {cell.speedup:.2f}x")
        assert spans[y].tolist() == [found.interval.low, found.interval.high]
        (bar,) = (b for b in axes.patches if abs(b.get_y() + b.get_height() / 2 - y) < 1e-6)
        looks.setdefault(cell.precision, set()).add((bar.get_facecolor(), bar.get_hatch()))
        assert bar.get_width() <= found.interval.high < begins[y] < axes.get_xlim()[1]
    assert [len(look) for look in looks.values()] == [1, 1, 1]
    for part in (0, 1):  # each precision has a colour and a hatch of its own
        assert len({next(iter(look))[part] for look in looks.values()}) == 3
    told = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert "line: 95% interval over seeds" in told
    assert "the ratio to none x fp32" in told


@pytest.mark.parametrize(
    ("kind", "column", "best", "worst", "text"),
    [
        ("speed", "images_per_s", max, min, "{:,.0f}".format),
        ("time", "train_time_s", min, max, record.duration),
        ("memory", "peak_allocated_mib", min, max, "{:,.0f}".format),
        ("accuracy", "test_accuracy", max, min, "{:.4f}".format),
        ("energy", "energy_j", min, max, "{:,.0f}".format),
    ],
)
def test_the_brightest_square_is_the_best_and_the_scale_says_so(
    nine: Loaded,
    drawn: dict[str, Picture],
    kind: str,
    column: str,
    best: Callable[[Any], float],
    worst: Callable[[Any], float],
    text: Callable[[float], str],
) -> None:
    done = nine[1][nine[1]["status"] == "completed"]
    means = done.groupby(["parallel", "precision"])[column].mean().to_dict()
    ends = worst(means.values()), best(means.values())
    squares, scale = drawn[f"heatmap-{kind}"].figure.axes
    table = nine[0].tables[0]
    assert squares.get_ylim() == (3, 0)  # the first parallelism is on top
    shades = matplotlib.colormaps["cividis"]
    for square in squares.patches:
        assert isinstance(square, Rectangle)
        x, y = square.get_xy()
        at = table.parallels[int(y)], table.precisions[int(x)]
        inside = [t for t in squares.texts if t.get_position()[0] == x + 0.5]
        inside = [t for t in inside if y < t.get_position()[1] < y + 1]
        lines = [t.get_text() for t in sorted(inside, key=lambda t: t.get_position()[1])]
        if at not in means:
            assert square.get_facecolor() == matplotlib.colors.to_rgba(style.GREY)
            assert square.get_hatch()
            assert lines[0].split()[0].isupper()
            continue
        share = (means[at] - ends[0]) / (ends[1] - ends[0])
        assert square.get_facecolor() == pytest.approx(shades(share), abs=0.02)
        assert {t.get_color() for t in inside} == {style.on(square.get_facecolor())}
        spread = table.cells[at].figures[column].interval
        assert spread is not None
        assert lines[:2] == [text(means[at]), f"{text(spread.low)} to {text(spread.high)}"]
    assert [label.get_text() for label in scale.get_yticklabels()] == [text(end) for end in ends]
    (image,) = scale.images
    assert image.origin == "lower"
    assert np.asarray(image.get_array())[[0, -1], 0].tolist() == [0, 1]
    assert image.get_cmap().name == "cividis"


def test_figures_that_are_all_the_same_have_one_shade_and_no_scale(tmp_path: Path) -> None:
    for parallel in ("none", "dp"):
        write_run(tmp_path, parallel, metrics={"images_per_s": 100.0})
    write_run(tmp_path, "dp", "scaler", metrics={"images_per_s": 100.0})
    made = {each.name: each.figure for each in pictures.draw(*loaded(tmp_path / "matrix")).pictures}
    (squares,) = made["heatmap-speed"].axes
    assert {square.get_facecolor() for square in squares.patches} == {
        matplotlib.colormaps["cividis"](0.5),
        matplotlib.colors.to_rgba(style.GREY),  # none x scaler, which nobody asked for
    }
    assert "Not shown" not in " ".join(text for text, _ in texts_of(made["pareto"])[0])


def test_a_step_is_drawn_from_its_median_over_95_to_99_percent(
    nine: Loaded, drawn: dict[str, Picture]
) -> None:
    table, axes = nine[0].tables[0], drawn["step-times"].figure.axes[0]
    done = nine[1][nine[1]["status"] == "completed"]
    means = done.groupby(["parallel", "precision"])[list(bars.STEPS)].mean()
    written = {text.get_position()[1]: text.get_text() for text in axes.texts}
    looks = {}
    for y, at in zip(axes.get_yticks(), table.cells, strict=True):
        lines = [line for line in axes.lines if np.asarray(line.get_ydata())[0] == y]
        if at not in means.index:
            assert not lines
            continue
        p50, p95, p99 = means.loc[at]
        found = [(line.get_marker(), np.asarray(line.get_xdata()).tolist()) for line in lines]
        marker = lines[-1].get_marker()
        assert found == [
            *(("None", pytest.approx([p50, p99])), ("|", pytest.approx([p95]))),
            *(("|", pytest.approx([p99])), (marker, pytest.approx([p50]))),
        ]
        three = " / ".join(f"{value:.{2 if value < 10 else 1}f}" for value in (p50, p95, p99))
        assert written[y].startswith(three)
        looks.setdefault(at[1], set()).update((line.get_color(), marker) for line in lines)
    for part in (0, 1):  # each precision has a colour and a marker of its own
        assert [len({look[part] for look in found}) for found in looks.values()] == [1, 1, 1]
        assert len({look[part] for found in looks.values() for look in found}) == 3


def test_the_memory_of_the_fullest_device_is_stacked_in_order(tmp_path: Path) -> None:
    values = ([1, 2], [1, 30], [1, 4], [50, 5], [1, 6], [1, 7], [1, -1])
    parts = dict(zip(stacks.MEMORY, values, strict=True))
    write_run(tmp_path, "dp", metrics={"memory_probe_peak_mib": [60, 60], **parts})
    parts["memory_parameters_mib"] = [3, 2]
    write_run(tmp_path, "dp", seed=1, metrics={"memory_probe_peak_mib": [70, 60], **parts})
    # What is not known of every device, or absurd, has no bar.
    odd = {"memory_gradients_mib": [None, 9], "memory_input_mib": [-5.0, 9]}
    write_run(tmp_path, "ddp", metrics={"memory_parameters_mib": [20, 10], **odd})
    # A run that failed has no part in a mean.
    failed = {"memory_parameters_mib": [90], "memory_probe_peak_mib": [90]}
    write_run(tmp_path, "ddp", seed=1, status=record.FAILED, metrics=failed)
    comparison, frame = loaded(tmp_path / "matrix")
    with style.settings():
        figure = stacks.memory(comparison.tables[0], cells.of_tables(comparison, frame)[0], "")
    assert figure is not None
    # The first device holds 56 or 58 MiB, the second 53; negative values have no bar.
    axes = figure.axes[0]
    filled = [patch for patch in axes.patches if patch.get_fill()]
    assert [(patch.get_x(), patch.get_width()) for patch in filled] == [
        *((0, 2), (2, 1), (3, 1), (4, 50), (54, 1), (55, 1), (56, 1)),
        (0, 20),
    ]
    legend = figure.legends[0]
    assert [text.get_text() for text in legend.get_texts()] == list(stacks.MEMORY.values())
    looks = [(patch.get_facecolor(), patch.get_hatch()) for patch in legend.get_patches()]
    assert looks == [(patch.get_facecolor(), patch.get_hatch()) for patch in filled[:7]]
    assert filled[7].get_facecolor() == looks[0][0]
    (peak,) = axes.lines
    assert np.asarray(peak.get_xdata()).tolist() == [65, 65]
    assert [text.get_text() for text in axes.texts] == ["65.0", "20.0"]
    assert axes.texts[0].get_position()[0] > 65  # behind the peak
    told = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert "Line and figure: the peak of the same step" in told


def test_shares_of_the_time_are_shown_where_the_whole_is_known(tmp_path: Path) -> None:
    shares = dict(zip(stacks.TIME, (0.5, 0.3, 0.0, 0.3, 0.1), strict=True))
    write_run(tmp_path, "none", metrics={**shares, "diagnosis": "compute-bound"})
    shares["share_gaps"] = -0.1  # a difference of two measurements
    write_run(tmp_path, "none", seed=1, metrics={**shares, "diagnosis": "compute-bound"})
    write_run(tmp_path, "dp", metrics={"share_input": 0.1, "diagnosis": "undetermined"})
    comparison, frame = loaded(tmp_path / "matrix")
    with style.settings():
        figure = stacks.time(comparison.tables[0], cells.of_tables(comparison, frame)[0], "")
    assert figure is not None
    filled = [patch for patch in figure.axes[0].patches if patch.get_fill()]
    assert [patch.get_width() for patch in filled] == pytest.approx([0.5, 0.3, 0.1, 0.1])
    assert {"compute-bound", "undetermined"} <= {text for text, _ in texts_of(figure)[0]}


def test_a_curve_is_the_mean_of_the_seeds_with_their_extremes(tmp_path: Path) -> None:
    for seed, accuracies in enumerate(([0.1, 0.5], [0.3, 0.6], [0.2, 0.1])):
        run = write_run(tmp_path, seed=seed)
        rows = [
            {"epoch": n, "test_accuracy": value, "train_time_s": 2.0 + seed}
            for n, value in enumerate(accuracies, 1)
        ]
        sweeps_to_draw.add_epochs(run, rows)
    failed = write_run(tmp_path, seed=3, status=record.FAILED)
    sweeps_to_draw.add_epochs(failed, [{"epoch": 1, "test_accuracy": 0.9, "train_time_s": 9.0}])
    comparison, frame = loaded(tmp_path / "matrix")
    (cell,) = cells.of_tables(comparison, frame)[0]
    points = curves.curve(cell, "test_accuracy").points
    assert [(p.epoch, p.seconds, p.low, p.high) for p in points] == [
        (1, 3.0, 0.1, 0.3),
        (2, 6.0, 0.1, 0.6),
    ]
    assert [p.mean for p in points] == pytest.approx([0.2, 0.4])


def test_each_curve_has_its_panel_its_look_and_its_band(
    nine: Loaded, drawn: dict[str, Picture]
) -> None:
    figure, table = drawn["training"].figure, nine[0].tables[0]
    found = {(d.cell.parallel, d.cell.precision): d for d in cells.of_tables(*nine)[0]}
    legend = figure.legends[0]
    names = [text.get_text() for text in legend.get_texts()]
    looks = dict(zip(names, legend.get_lines(), strict=True))
    assert names == list(table.precisions)
    for tell in (Line2D.get_color, Line2D.get_marker, lambda line: str(line._dash_pattern)):
        assert len({tell(line) for line in looks.values()}) == 3
    for place, axes in enumerate(figure.axes):
        parallel, metric = table.parallels[place // 2], ("train_loss", "test_accuracy")[place % 2]
        label = ("training loss", "test accuracy")[place % 2]
        assert axes.get_ylabel() == (label if place < 2 else "")
        assert axes.get_xlabel() == ("", "epoch")[place % 2]
        assert all(float(tick).is_integer() for tick in axes.get_xticks())
        lines = {line.get_color(): line for line in axes.lines if line.get_marker() != "x"}
        bands = [band.get_paths()[0].get_extents() for band in axes.collections]
        for precision in table.precisions:
            points = curves.curve(found[parallel, precision], metric).points
            colour = looks[precision].get_color()
            assert (colour in lines) == bool(points)
            if points:
                x, y = np.asarray(lines[colour].get_xydata()).T.tolist()
                assert (x, y) == ([p.epoch for p in points], [p.mean for p in points])
                band = bands.pop(0)
                assert band.y0 == min(p.low for p in points)
                assert band.y1 == max(p.high for p in points)
        ends = [np.asarray(line.get_xdata())[0] for line in axes.lines if line.get_marker() == "x"]
        assert ends == ([5] if parallel == "dp" else [])  # where dp x scaler failed
    told = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert "band: lowest and highest seed" in told


@pytest.mark.parametrize(
    ("seconds", "unit", "length", "scale"),
    [(50.0, "minutes", 60, "linear"), (1.0, "minutes", 60, "log"), (3000.0, "hours", 3600, "log")],
)
def test_the_dotted_line_is_what_every_cell_reaches_and_a_ring_is_where(
    tmp_path: Path, seconds: float, unit: str, length: float, scale: str
) -> None:
    for parallel, status, each, accuracies in (
        ("none", record.COMPLETED, 60.0, [0.1, 0.7, 0.65]),
        ("dp", record.COMPLETED, seconds, [0.3, 0.6, 0.55]),
        ("ddp", record.RUNNING, 60.0, [0.2, 0.3]),
    ):
        rows = [
            {"epoch": n, "test_accuracy": value, "train_time_s": each}
            for n, value in enumerate(accuracies, 1)
        ]
        sweeps_to_draw.add_epochs(write_run(tmp_path, parallel, status=status), rows)
    comparison, frame = loaded(tmp_path / "matrix")
    with style.settings():
        found = cells.of_tables(comparison, frame)[0]
        figure = curves.time_to_accuracy(comparison.tables[0], found, "")
    assert figure is not None
    told = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert "Dotted: 0.6000, which every cell reaches" in told
    rings = {"none": [[120 / length, 0.7]], "dp": [[2 * seconds / length, 0.6]], "ddp": []}
    for axes, (parallel, expected) in zip(figure.axes, rings.items(), strict=True):
        assert axes.get_xlabel() == f"training time, {unit}"
        assert axes.get_xscale() == scale
        (dotted,) = (line for line in axes.lines if line.get_color() == style.MUTED)
        assert set(np.asarray(dotted.get_ydata()).tolist()) == {0.6}
        there = [line for line in axes.lines if line.get_markersize() == 9]
        assert [np.asarray(line.get_xydata())[0].tolist() for line in there] == [
            pytest.approx(at) for at in expected
        ]
        lines = [line for line in axes.lines if len(np.asarray(line.get_xdata())) > 1]
        thin = [line for line in lines if line.get_color() == style.FAINT]
        assert [np.asarray(line.get_xdata())[-1] for line in thin] == pytest.approx(
            [180 / length, 3 * seconds / length, 120 / length]
        )
        (own,) = (line for line in lines if line not in (*thin, dotted))
        at = list(rings).index(parallel)
        assert np.asarray(own.get_xydata()).tolist() == np.asarray(thin[at].get_xydata()).tolist()


def test_a_curve_over_time_ends_before_the_first_epoch_without_a_time(tmp_path: Path) -> None:
    rows = [{"epoch": n, "test_accuracy": n / 10, "train_time_s": 10.0} for n in range(1, 5)]
    sweeps_to_draw.add_epochs(write_run(tmp_path, seed=0), rows)
    short = [*rows[:2], rows[2] | {"train_time_s": None}]
    sweeps_to_draw.add_epochs(write_run(tmp_path, seed=1), short)
    comparison, frame = loaded(tmp_path / "matrix")
    with style.settings():
        found = cells.of_tables(comparison, frame)[0]
        figure = curves.time_to_accuracy(comparison.tables[0], found, "")
    assert figure is not None
    assert {len(np.asarray(line.get_xdata())) for line in figure.axes[0].lines} == {2}


def test_filled_points_are_those_on_the_front_of_the_answer(
    nine: Loaded, drawn: dict[str, Picture]
) -> None:
    front = answer.answer(nine[0]).tables[0].front
    assert 0 < len(front) < 7
    lines = [line for line in drawn["pareto"].figure.axes[0].lines if line.get_markersize() == 8]
    filled = [line for line in lines if line.get_markerfacecolor() != style.PAPER]
    assert len(lines) == 7
    assert len(filled) == len(front)


def test_the_plane_of_the_front_has_the_fronts_own_figures(
    nine: Loaded, drawn: dict[str, Picture]
) -> None:
    figure, table = drawn["pareto"].figure, nine[0].tables[0]
    axes = figure.axes[0]
    assert axes.get_xlim()[0] == 0  # the slowest has less than half of the fastest's speed
    assert 1000 < axes.get_ylim()[0] < 1200  # all memory is above 1,200 MiB
    assert axes.get_xlabel() == "images per second"
    assert axes.get_ylabel() == "peak memory of the fullest device, MiB"
    looks: list[dict[str, Any]] = [
        {text.get_text(): handle for text, handle in zip(found.texts, handles, strict=True)}
        for found in figure.legends
        for handles in [found.legend_handles]
    ]
    by_parallel, by_precision = looks
    front = answer.answer(nine[0]).tables[0].front
    expected = {}
    for (parallel, precision), cell in table.cells.items():
        if (speed := cell.figures["images_per_s"].mean) is not None:
            colour = matplotlib.colors.to_hex(by_precision[precision].get_facecolor())
            fill = colour if (parallel, precision) in front else style.PAPER
            at = speed, cell.figures[table.memory].mean
            expected[at] = (by_parallel[parallel].get_marker(), colour, fill)
    there = [line for line in axes.lines if line.get_markersize() == 8]
    assert {
        tuple(np.asarray(line.get_xydata())[0].tolist()): (
            *(line.get_marker(), line.get_color(), line.get_markerfacecolor()),
        )
        for line in there
    } == expected
    assert len({handle.get_marker() for handle in by_parallel.values()}) == 3
    assert len({handle.get_facecolor() for handle in by_precision.values()}) == 3


@pytest.mark.parametrize("number", [9, 25])
def test_a_point_is_joined_to_its_own_name(
    number: int,
    nine: Loaded,
    drawn: dict[str, Picture],
    twentyfive: Loaded,
    drawn_large: dict[str, Picture],
) -> None:
    loads, made = (nine, drawn) if number == 9 else (twentyfive, drawn_large)
    table, figure = loads[0].tables[0], made["pareto"].figure
    listed = dict(
        found.groups()
        for text in figure.texts
        if (found := re.fullmatch(r"(\d+)  (.*)", text.get_text()))
    )
    shown = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert ("The list below has the cell" in shown) == bool(listed) == (number == 25)
    axes = figure.axes[0]
    names = {text.get_position(): text.get_text() for text in axes.texts}
    joined = {}
    for line in axes.lines:
        if line.get_linewidth() == 0.5:
            start, end = map(tuple, np.asarray(line.get_xydata()).tolist())
            joined[listed.get(names[end], names[end])] = start
    expected = {}
    for (parallel, precision), cell in table.cells.items():
        accuracy, speed = (cell.figures[n].mean for n in ("test_accuracy", "images_per_s"))
        if speed is not None:
            name = f"{parallel} x {precision}  {accuracy:.4f}"
            expected[name] = speed, cell.figures[table.memory].mean
        elif cell.runs:
            told = f"{parallel} x {precision} ({next(iter(cell.statuses)).upper()}"
            assert told.replace(" ", "") in shown.replace(" ", "")
    assert joined == expected


def assert_marked(figure: Figure) -> None:
    """One contended and one stitched cell are named so, and the words are explained."""
    texts = [text for text, _ in texts_of(figure)[0]]
    for mark in ("contended", "stitched"):
        assert sum(text.endswith(mark) for text in texts) == 1, (mark, texts)
    explained = " ".join(" ".join(texts).split())
    assert "Contended: other processes used the device" in explained
    assert "Stitched: interrupted and resumed" in explained


def test_disturbed_cells_are_marked_and_the_mark_is_explained(tmp_path: Path) -> None:
    write_run(tmp_path, metrics={"contended": True})
    write_run(tmp_path, "dp", segments=2)
    write_run(tmp_path, "ddp")
    comparison, frame = loaded(tmp_path / "matrix")
    made = {each.name: each.figure for each in pictures.draw(comparison, frame).pictures}
    for kind in ("throughput", "pareto", "heatmap-speed", "heatmap-time"):
        assert_marked(made[kind])
    # Memory and accuracy do not depend on the clock.
    for kind in ("heatmap-memory", "heatmap-accuracy"):
        assert "ontended" not in " ".join(text for text, _ in texts_of(made[kind])[0])


def test_curves_step_times_and_shares_of_disturbed_cells_are_marked_too(tmp_path: Path) -> None:
    rows = [
        {"epoch": n, "train_loss": 2 / n, "test_accuracy": n / 10, "train_time_s": 1.0}
        for n in range(1, 3)
    ]
    steps = dict.fromkeys(bars.STEPS, 5.0)
    shares = dict.fromkeys(stacks.TIME, 0.2)
    for parallel, metrics, segments in (
        ("none", {"contended": True}, 1),
        ("dp", {}, 2),
        ("ddp", {}, 1),
    ):
        run = write_run(tmp_path, parallel, metrics=steps | shares | metrics, segments=segments)
        sweeps_to_draw.add_epochs(run, rows)
    comparison, frame = loaded(tmp_path / "matrix")
    made = {each.name: each.figure for each in pictures.draw(comparison, frame).pictures}
    for kind in ("training", "time-to-accuracy", "step-times", "time"):
        assert_marked(made[kind])
        assert collisions(made[kind]) == []
    for axes in made["training"].axes:  # of two epochs
        assert all(float(tick).is_integer() for tick in axes.get_xticks())


@pytest.mark.parametrize("value", [1e308, 1e299, 1e31, 1e29, -1.0])
def test_a_figure_that_no_training_can_have_costs_itself_alone(
    tmp_path: Path, value: float
) -> None:
    sweep = sweeps_to_draw.matrix(tmp_path)
    run = next(sweep.glob("none-autocast-s1-*"))
    found = record.read(run / "record.json")
    for name, before in found.metrics.items():
        if isinstance(before, list):
            found.metrics[name] = [value] * len(before)
        elif isinstance(before, float):
            found.metrics[name] = value
    for name in ("train_loss", "test_accuracy", "train_time_s"):
        found.epochs[3][name] = value
    record.write(run / "record.json", found)
    frame, problems = load(sweep)
    drawn = pictures.draw(compare(frame), frame)
    assert [picture.name for picture in drawn.pictures] == KINDS
    for picture in drawn.pictures:
        ET.parse(io.StringIO(picture.svg))
    told = [*problems, *drawn.left_out]
    if value != 1e29:  # absurd, and yet a number that can be drawn
        assert any("images_per_s" in text for text in told)
        assert any("train_time_s of epoch 4 is" in text for text in told)
        (speeds,) = (each for each in drawn.pictures if each.name == "throughput")
        assert max(heights(speeds.figure).values()) < 1e6
    assert any("test_accuracy of epoch 4 is" in text for text in told)


def test_a_picture_that_fails_is_left_out_with_the_reason(
    nine: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OverflowError("too large")

    monkeypatch.setattr(bars, "throughput", fails)
    drawn = pictures.draw(*nine)
    assert [picture.name for picture in drawn.pictures] == KINDS[1:]
    assert drawn.left_out == (
        "alexnet on cifar10, images per second: could not be drawn: too large",
    )


def to_grey(colour: str) -> float:
    """Lightness of a colour in print: CIE L*, 0 to 100."""
    y = style.luminance(colour)
    return float(116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y)


def deficient(colour: str, matrix: list[list[float]]) -> np.ndarray[Any, Any]:
    rgb = np.array(matplotlib.colors.to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.array(matrix) @ linear


@pytest.mark.parametrize("number", [2, 3, 5])
def test_colours_of_series_differ_in_black_and_white(number: int) -> None:
    grey = [to_grey(colour) for colour in style.series(number)]
    assert grey == sorted(grey)
    assert min(b - a for a, b in itertools.pairwise(grey)) >= 8


# Machado, Oliveira and Fernandes 2009, severity 1, for linear RGB.
DEUTERANOPIA = [
    [0.367322, 0.860646, -0.227968],
    [0.280085, 0.672501, 0.047413],
    [-0.011820, 0.042940, 0.968881],
]
PROTANOPIA = [
    [0.152286, 1.052583, -0.204868],
    [0.114503, 0.786281, 0.099216],
    [-0.003882, -0.048116, 1.051998],
]


@pytest.mark.parametrize("matrix", [DEUTERANOPIA, PROTANOPIA], ids=["deuteranopia", "protanopia"])
def test_colours_of_series_keep_their_order_for_the_colour_blind(matrix: list[list[float]]) -> None:
    weights = np.array([0.2126, 0.7152, 0.0722])
    seen = [float(weights @ deficient(colour, matrix)) for colour in style.series(5)]
    assert seen == sorted(seen)
    assert min(b - a for a, b in itertools.pairwise(seen)) > 0.02


@pytest.mark.parametrize("number", [3, 7])
def test_colours_stand_out_from_a_light_page_and_from_a_dark_one(number: int) -> None:
    def contrast(one: str, other: str) -> float:
        low, high = sorted((style.luminance(one), style.luminance(other)))
        return (high + 0.05) / (low + 0.05)

    dark = style.dark()
    for colour in style.series(number):
        assert contrast(colour, style.PAPER) >= 3
        assert contrast(dark[colour], dark[style.PAPER]) >= 3
    for text in (style.INK, style.MUTED):
        assert contrast(text, style.PAPER) >= 4.5
        assert contrast(dark[text], dark[style.PAPER]) >= 4.5


@pytest.mark.parametrize("shade", np.linspace(0, 1, 21))
def test_text_on_every_shade_of_the_heat_maps_can_be_read(shade: float) -> None:
    ground = matplotlib.colormaps["cividis"](shade)
    low, high = sorted((style.luminance(ground), style.luminance(style.on(ground))))
    assert (high + 0.05) / (low + 0.05) >= 4.5


@pytest.mark.parametrize(
    ("seconds", "unit"),
    [(0.5, "seconds"), (119, "seconds"), (120, "minutes"), (7199, "minutes"), (7200, "hours")],
)
def test_times_are_shown_in_the_largest_unit_of_which_there_are_two(
    seconds: float, unit: str
) -> None:
    lengths = {"seconds": 1, "minutes": 60, "hours": 3600}
    assert style.time_unit(seconds) == (unit, lengths[unit])


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("none x fp32", ["none x fp32"]),
        ("autocast_bfloat16_with_fp32", ["autocast_", "bfloat16_with_", "fp32"]),
        ("ddp (devices=8)", ["ddp (devices=", "8)"]),
        ("ddddddddddddddddddddddddd", ["dddddddddddd", "dddddddddddd", "d"]),
        ("", [""]),
    ],
)
def test_long_names_break_where_a_reader_expects_it(text: str, lines: list[str]) -> None:
    found = style.wrapped(text, 1.0)
    assert found.split("\n") == lines
    assert style.width(found) <= 1.0
