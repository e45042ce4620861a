import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.compare import UnknownBaseline, compare
from analysis.comparison import Comparison, Table
from analysis.frame import load
from analysis.statistics import Figure

Make = Callable[..., Path]


def compared(*dirs: Path, baseline: tuple[str, str] | None = None) -> Comparison:
    return compare(load(*dirs)[0], baseline)


def only(comparison: Comparison) -> Table:
    [table] = comparison.tables
    return table


def notes_of(table: Table, *at: str) -> list[str]:
    cell = table.cells[at[0], at[1]]
    return [table.footnotes[number - 1] for number in cell.footnotes]


def test_speed_ups_are_ratios_of_images_per_s_to_none_fp32(make_matrix: Make) -> None:
    table = only(compared(make_matrix()))
    found = {at: cell.speedup for at, cell in table.cells.items()}
    # The maker: dp takes twice, ddp half the time; autocast half, scaler three quarters.
    assert found == {
        (p, q): pytest.approx(1 / (a * b))
        for p, a in (("none", 1.0), ("dp", 2.0), ("ddp", 0.5))
        for q, b in (("fp32", 1.0), ("autocast", 0.5), ("scaler", 0.75))
    }
    assert table.parallels == ("none", "dp", "ddp")
    assert table.precisions == ("fp32", "autocast", "scaler")
    assert table.cells["ddp", "fp32"].devices == 2


def test_the_baseline_can_be_chosen(make_matrix: Make) -> None:
    table = only(compared(make_matrix(), baseline=("ddp", "autocast")))
    assert table.cells["ddp", "autocast"].speedup == 1.0
    assert table.cells["none", "fp32"].speedup == pytest.approx(0.25)


def test_an_unknown_baseline_names_those_there_are(make_run: Make) -> None:
    with pytest.raises(UnknownBaseline, match="no cell ddp,fp64; there are: none,fp32"):
        compared(make_run(), baseline=("ddp", "fp64"))


def test_only_completed_runs_give_figures(make_matrix: Make) -> None:
    half_done: dict[str, Any] = {"status": "running", "metrics": {"images_per_s": 1e9}}
    table = only(compared(make_matrix(but={("dp", "fp32"): half_done, ("ddp", "fp32"): None})))
    running, absent = table.cells["dp", "fp32"], table.cells["ddp", "fp32"]
    assert running.figures["images_per_s"].n == 0
    assert (running.speedup, running.no_speedup) == (None, "not completed")
    assert (absent.runs, absent.no_speedup) == (0, "not asked for")


@pytest.mark.parametrize("but", [None, {"status": "oom"}, {"metrics": {"images_per_s": None}}])
def test_without_the_baseline_there_is_no_speed_up_and_the_reason(
    make_matrix: Make, but: dict[str, Any] | None
) -> None:
    table = only(compared(make_matrix(but={("none", "fp32"): but})))
    assert all(cell.speedup is None for cell in table.cells.values())
    reason = {
        "None": "the baseline none x fp32 was not run with these settings",
        "{'status': 'oom'}": "the baseline none x fp32 is OOM",
    }.get(str(but), "the baseline none x fp32 has no images_per_s")
    assert table.unrelated == reason
    assert table.cells["ddp", "scaler"].no_speedup == reason


def test_seeds_are_repeats_with_mean_and_sample_standard_deviation(make_matrix: Make) -> None:
    for seed in (0, 1, 2):
        sweep = make_matrix(seed=seed, metrics={"images_per_s": 1000.0 + seed**2})
    cell = only(compared(sweep)).cells["dp", "scaler"]
    values = [1000.0, 1001.0, 1004.0]
    figure = cell.figures["images_per_s"]
    assert figure.by_seed == tuple(enumerate(values))
    assert figure.mean == pytest.approx(statistics.mean(values))
    assert figure.sd == pytest.approx(statistics.stdev(values))
    assert (cell.runs, cell.completed) == (3, 3)


def test_one_run_has_no_spread() -> None:
    assert Figure(((0, 2.0),)).sd is None
    assert Figure().mean is None


def test_a_seed_that_failed_leaves_the_others_and_is_listed(make_run: Make) -> None:
    make_run(seed=0)
    error = {"type": "RuntimeError", "message": "boom", "rank": 0}
    run = make_run(seed=1, status="failed", error=error, segments=2)
    table = only(compared(run.parent))
    cell = table.cells["none", "fp32"]
    assert (cell.completed, cell.runs, cell.speedup) == (1, 2, 1.0)
    assert (cell.flaws, cell.footnotes, cell.devices) == ((), (), 1)
    assert table.missing == (f"none x fp32, seed 1: FAILED, RuntimeError: boom [{run}]",)


def test_two_gpus_are_not_compared(make_matrix: Make) -> None:
    first = make_matrix(sweep="a", gpu=True)
    other = {"device_names": ["NVIDIA A100"]}
    second = make_matrix(sweep="b", gpu=True, effective=other, but={("none", "fp32"): None})
    comparison = compared(first, second)
    a100, h200 = comparison.tables
    assert a100.title == "alexnet on digits, device_name=NVIDIA A100"
    assert all(cell.speedup is None for cell in a100.cells.values())
    assert a100.unrelated == (
        "the baseline none x fp32 was not run with these settings; "
        "it was with device_name=NVIDIA H200 (here NVIDIA A100)"
    )
    assert h200.cells["ddp", "fp32"].speedup == 2.0
    assert any("NVIDIA A100 (8 runs)" in text for text in comparison.warnings)


def test_the_number_of_devices_is_no_reason_for_another_table(make_matrix: Make) -> None:
    assert only(compared(make_matrix(gpu=True))).cells["ddp", "fp32"].devices == 2


def test_another_torch_or_batch_size_is_another_table(make_run: Make) -> None:
    make_run()
    make_run("dp", environment={"torch": "2.11.0"})
    sweep = make_run("ddp", settings={"data.batch_size": 128}).parent
    assert len(compared(sweep).tables) == 3


def test_tables_are_titled_by_the_swept_axis_in_its_order(make_matrix: Make) -> None:
    for batch in (128, 64):
        sweep = make_matrix(
            settings={"data.batch_size": batch}, overrides=(f"data.batch_size={batch}",)
        )
    tables = compared(sweep).tables
    assert [table.title for table in tables] == [
        "alexnet on digits, data.batch_size=64",
        "alexnet on digits, data.batch_size=128",
    ]
    assert [table.fields["data.batch_size"] for table in tables] == ["64", "128"]


def test_two_models_are_told_apart_by_their_names(make_run: Make) -> None:
    make_run()
    sweep = make_run(settings={"model.name": "resnet18", "data.image_size": 32}).parent
    titles = [table.title for table in compared(sweep).tables]
    assert titles == ["alexnet on digits", "resnet18 on digits"]


def test_runs_that_have_not_started_stand_with_their_sweep(make_matrix: Make) -> None:
    but = {("dp", "fp32"): {"status": "pending"}, ("ddp", "fp32"): {"status": "invalid"}}
    table = only(compared(make_matrix(gpu=True, but=but)))
    assert table.cells["dp", "fp32"].statuses == {"pending": 1}
    assert table.cells["ddp", "fp32"].statuses == {"invalid": 1}


def test_a_sweep_of_pending_runs_is_one_table(make_matrix: Make) -> None:
    table = only(compared(make_matrix(status="pending")))
    assert table.hardware == "no run has started"
    assert sum(cell.runs for cell in table.cells.values()) == 9


def test_requested_variants_of_one_name_are_rows_of_their_own(make_run: Make) -> None:
    make_run(gpu=True)
    for n in (2, 4):
        effective = {"world_size": n, "device_names": ["NVIDIA H200"] * n}
        sweep = make_run(
            "ddp", gpu=True, settings={"parallel.devices": n}, effective=effective
        ).parent
    table = only(compared(sweep))
    assert table.parallels == ("none", "ddp (devices=2)", "ddp (devices=4)")
    assert table.cells["ddp (devices=4)", "fp32"].completed == 1


def test_the_same_request_on_more_devices_is_no_repeat(make_run: Make) -> None:
    make_run(gpu=True)
    for seed, n in ((0, 2), (1, 4)):
        effective = {"world_size": n, "device_names": ["NVIDIA H200"] * n}
        sweep = make_run("ddp", seed=seed, gpu=True, effective=effective).parent
    assert only(compared(sweep)).parallels == ("none", "ddp on 2", "ddp on 4")


def test_a_baseline_with_variants_asks_which(make_run: Make) -> None:
    make_run()
    sweep = make_run(settings={"precision.tf32": True}).parent
    table = only(compared(sweep))
    assert "ambiguous" in table.unrelated
    chosen = only(compared(sweep, baseline=("none", "fp32 (tf32=true)")))
    assert chosen.cells["none", "fp32 (tf32=false)"].speedup == 1.0


def test_what_disturbs_a_figure_is_a_footnote(make_matrix: Make) -> None:
    table = only(
        compared(
            make_matrix(
                gpu=True,
                effective={"cudnn_benchmark": True},
                but={
                    ("none", "autocast"): {"metrics": {"data_wait_frac": 0.21}},
                    ("none", "scaler"): {"segments": 2},
                    ("dp", "fp32"): {"effective": {"cudnn_benchmark": False}},
                    ("dp", "autocast"): {
                        "notes": ("no effect here: one GPU", "other"),
                        "effective": {"replicas": 1},
                    },
                    ("dp", "scaler"): {"effective": {"replicas": 1}},
                    ("ddp", "fp32"): {"effective": {"world_size": 1}},
                    ("ddp", "autocast"): {
                        "notes": ("no effect here: one GPU",),
                        "effective": {"world_size": 1},
                    },
                    ("ddp", "scaler"): {"effective": {"global_batch": 128}},
                },
            )
        )
    )
    starts = {
        ("none", "autocast"): "input-bound",
        ("none", "scaler"): "stitched",
        ("dp", "fp32"): "cudnn benchmark off for dp",
        ("dp", "autocast"): "no effect here: one GPU",
        ("dp", "scaler"): "no effect here: dp",
        ("ddp", "fp32"): "no effect here: ddp",
        ("ddp", "autocast"): "no effect here: one GPU",
        ("ddp", "scaler"): "global batch 128",
    }
    for at, start in starts.items():
        found = [
            n for n in notes_of(table, *at) if n != "global batch 64: not the same in all cells"
        ]
        assert len(found) == 1, (at, found)
        assert found[0].startswith(start)


@pytest.mark.parametrize(
    ("native", "dtype", "notes"),
    [
        (False, "bfloat16", ["bfloat16 is emulated on this device, and slow"]),
        (None, "bfloat16", []),
        (False, "float16", []),
    ],
)
def test_emulated_bfloat16_is_a_footnote(
    make_run: Make, native: bool | None, dtype: str, notes: list[str]
) -> None:
    run = make_run(effective={"native_bf16": native, "autocast_dtype": dtype})
    assert notes_of(only(compared(run.parent)), "none", "fp32") == notes


def test_a_note_of_contention_disturbs_as_the_figure_does(make_run: Make) -> None:
    make_run("dp", notes=("contended: NVML does not tell which processes use the device",))
    make_run(seed=0, notes=("contended: another process was there",))
    make_run(seed=1, notes=("contended: other processes were there",))
    make_run(seed=2, metrics={"contended": True})
    table = only(compared(make_run(seed=3).parent))
    told = "contended: 3 of 4 runs were disturbed by other processes"
    assert table.cells["none", "fp32"].flaws == (told,)
    assert notes_of(table, "none", "fp32")[0].startswith("contended: ")
    assert table.cells["dp", "fp32"].flaws == ()


def test_a_run_that_stood_still_has_a_footnote_and_disturbed_times(make_run: Make) -> None:
    table = only(compared(make_run(notes=("paused: 12 s",)).parent))
    assert table.cells["none", "fp32"].flaws == ("paused: its run was halted for a while",)
    assert [note.split(":")[0] for note in notes_of(table, "none", "fp32")] == ["paused"]


@pytest.mark.parametrize(
    ("status", "error", "told"),
    [
        ("running", None, "RUNNING, 0 of 10 epochs done"),
        ("failed", {"type": "E", "message": "no"}, "FAILED, E: no"),
        ("failed", {"type": "E", "message": ""}, "FAILED, E"),
        ("invalid", {"type": "E", "message": "no"}, "INVALID, no"),
        ("failed", {"type": "E", "message": "a" + 300 * "b"}, f"FAILED, E: a{193 * 'b'}..."),
    ],
)
def test_why_a_run_is_not_completed_is_told_in_short(
    make_run: Make, status: str, error: dict[str, Any] | None, told: str
) -> None:
    (missing,) = only(compared(make_run(status=status, error=error).parent)).missing
    assert missing.startswith(f"none x fp32, seed 0: {told} [")


def test_the_diagnosis_of_a_cell_is_that_of_most_runs_with_evidence_of_its_own(
    make_run: Make,
) -> None:
    for seed, kind in enumerate(("launch-bound", "memory-bound", "memory-bound")):
        metrics = {"diagnosis": kind, "diagnosis_evidence": f"seed {seed}"}
        sweep = make_run(seed=seed, metrics=metrics).parent
    cell = only(compared(sweep)).cells["none", "fp32"]
    assert (cell.diagnosis, cell.evidence) == ("memory-bound", "seed 1")
    for seed, share in enumerate((0.1, 0.1, 0.3)):  # a sixth on average
        waits = make_run("dp", seed=seed, metrics={"data_wait_frac": share}).parent
    assert only(compared(waits)).cells["dp", "fp32"].diagnosis == ""
    for seed, share in enumerate((0.1, 0.3, 0.3)):
        waits = make_run("ddp", seed=seed, metrics={"data_wait_frac": share}).parent
    cell = only(compared(waits)).cells["ddp", "fp32"]
    assert (cell.diagnosis, "23% of the time" in cell.evidence) == ("input-bound", True)


def test_no_footnote_where_nothing_is_to_be_said(make_matrix: Make) -> None:
    other = {"cudnn_benchmark": True, "global_batch": 128}
    table = only(
        compared(
            make_matrix(
                gpu=True,
                effective={"cudnn_benchmark": False},
                metrics={"data_wait_frac": 0.2},
                but={
                    ("ddp", "scaler"): {"status": "failed", "effective": other},
                    ("ddp", "fp32"): {"effective": dict.fromkeys(other)},  # not known
                },
            )
        )
    )
    assert table.footnotes == ()


def test_differing_commits_and_uncommitted_changes_are_warned_about(make_run: Make) -> None:
    make_run(environment={"git_dirty": False})
    sweep = make_run("ddp", environment={"git_commit": "1234567890", "git_dirty": True}).parent
    warnings = compared(sweep).warnings
    assert "git commit differs between the runs: 1234567 (1 run), abcdef0 (1 run)" in warnings
    assert "uncommitted changes in the code of 1 of 2 runs" in warnings


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("python", ("3.12.3", "3.13.1"), "Python"),
        ("torch", ("2.14.1", "2.13.0"), "torch"),
        ("torchvision", ("0.29.1", "0.28.0"), "torchvision"),
        ("cuda", ("13.0", "12.9"), "CUDA"),
        ("driver", ("580.1", "575.2"), "driver"),
        ("cpu", ("Intel Xeon", "AMD EPYC"), "CPU"),
        ("cores", ("16", "8"), "number of cores"),
    ],
)
def test_rows_of_two_environments_are_warned_about(
    make_run: Make, field: str, values: tuple[str, str], words: str
) -> None:
    """Once each, and nothing else: the CPU of GPU rows is not their device."""
    one, other = (int(v) if field == "cores" else v for v in values)
    make_run(gpu=True, environment={field: one})
    make_run(gpu=True, seed=1, environment={field: one})
    sweep = make_run("ddp", gpu=True, environment={field: other}).parent
    told = [text for text in compared(sweep).warnings if "differs between the runs" in text]
    assert told == [f"{words} differs between the runs: {one} (2 runs), {other} (1 run)"]


@pytest.mark.parametrize(
    ("field", "words"), [("kept_memory", "kept memory"), ("huge_pages", "use of 2 MiB pages")]
)
def test_memory_that_only_some_ranks_keep_is_warned_about(
    make_run: Make, field: str, words: str
) -> None:
    make_run(effective={field: True})
    make_run(seed=1, effective={field: True})
    make_run(seed=2)  # of before there was such a thing
    sweep = make_run("ddp", effective={field: False}).parent
    told = [text for text in compared(sweep).warnings if "differs between the runs" in text]
    assert told == [f"{words} differs between the runs: on (2 runs), off (1 run)"]


def test_a_cpu_that_is_the_device_is_told_once(make_run: Make) -> None:
    make_run(environment={"cpu": "Intel Xeon"})
    sweep = make_run("ddp", environment={"cpu": "AMD EPYC"}).parent
    told = [text for text in compared(sweep).warnings if "AMD EPYC" in text]
    assert told == ["device differs between the runs: AMD EPYC (1 run), Intel Xeon (1 run)"]


def test_other_images_under_the_same_settings_are_warned_about(make_run: Make) -> None:
    make_run(effective={"data_digest": "aa"})
    sweep = make_run("ddp", effective={"data_digest": "bb"}).parent
    assert compared(sweep).warnings == ("runs on digits saw different images (data_digest)",)


def test_other_code_of_ones_own_under_the_same_name_is_warned_about(make_run: Make) -> None:
    make_run(effective={"code_digest": "aa"})
    make_run(effective={"code_digest": None}, seed=1)  # of before there was such a thing
    sweep = make_run("ddp", effective={"code_digest": "aa"}).parent
    assert compared(sweep).warnings == ()
    make_run("ddp", seed=1, effective={"code_digest": "bb"})
    (warning,) = compared(sweep).warnings
    assert warning == "runs of alexnet on digits had different code (code_digest)"


def test_the_articles_input_as_written_is_one_table_with_footnotes(
    make_matrix: Make, article: dict[str, Any]
) -> None:
    written = {**article, "experiment": "article_as_written", "data.pipeline": "pil"}
    alone = {"settings": {**written, "data.shuffle": False, "data.workers": 0}}
    shared = {"settings": {**written, "data.shuffle": True, "data.workers": 2}}
    but: dict[tuple[str, str], Any] = {(p, "fp32"): alone for p in ("none", "dp")} | {
        ("ddp", "fp32"): shared
    }
    but |= {(p, q): None for p in ("none", "dp", "ddp") for q in ("autocast", "scaler")}
    sweep = make_matrix(gpu=True, but=but)
    table = only(compared(sweep))
    assert table.cells["ddp", "fp32"].speedup == 2.0
    assert notes_of(table, "ddp", "fp32") == [
        "input as the article has it for ddp: loader workers 2, shuffled; other cells differ"
    ]
    # In any other experiment the same difference forbids the comparison.
    for cell in (alone, shared):
        cell["settings"] |= {"experiment": "none"}
    other = make_matrix(sweep="other", gpu=True, but=but)
    assert len(compared(other).tables) == 2


def test_the_articles_figures_stand_beside_its_settings_only(
    make_matrix: Make, article: dict[str, Any]
) -> None:
    cells = only(compared(make_matrix(settings=article))).cells
    published = cells["none", "scaler"].published
    assert published is not None
    assert (published.minutes, published.accuracy) == (27, None)
    folder = {**article, "data.name": "imagefolder", "data.root": "/data/CIFAR10-jpeg"}
    variants = (
        (folder, True),
        ({**folder, "data.root": "/data/cats"}, False),
        ({**article, "data.batch_size": 128}, False),
        ({**article, "data.normalize": True}, False),
    )
    for n, (settings, there) in enumerate(variants):
        table = only(compared(make_matrix(sweep=f"sweep{n}", settings=settings)))
        assert all((cell.published is not None) is there for cell in table.cells.values())


def test_a_requested_device_is_not_taken_for_a_repeat_of_another_request(make_run: Make) -> None:
    make_run()
    sweep = make_run(settings={"device": "cpu"}).parent
    titles = [table.title for table in compared(sweep).tables]
    assert titles == ["alexnet on digits, device=auto", "alexnet on digits, device=cpu"]


def test_the_same_seeds_are_pairs_and_others_are_not(make_run: Make) -> None:
    for seed in (0, 1, 2):
        make_run(seed=seed, metrics={"images_per_s": 1000.0 + seed})
        make_run("dp", seed=seed, metrics={"images_per_s": 2000.0 + seed})
        sweep = make_run("ddp", seed=seed + 3, metrics={"images_per_s": 500.0 + seed}).parent
    table = only(compared(sweep))
    methods = {p: cell.effects["images_per_s"].method for (p, _), cell in table.cells.items()}
    assert methods == {"none": "", "dp": "paired t", "ddp": "Welch t"}
    assert table.cells["none", "fp32"].effects["images_per_s"].reason == "the baseline itself"


def test_repeated_speed_ups_are_ratios_of_geometric_means(make_run: Make) -> None:
    for seed, (base, other) in enumerate([(100.0, 150.0), (200.0, 500.0)]):
        make_run(seed=seed, metrics={"images_per_s": base})
        sweep = make_run("dp", seed=seed, metrics={"images_per_s": other}).parent
    cell = only(compared(sweep)).cells["dp", "fp32"]
    assert cell.speedup == pytest.approx((1.5 * 2.5) ** 0.5)


def test_memory_is_what_the_device_tells_best(make_run: Make) -> None:
    rss = {"peak_rss_mib": [900.0]}
    make_run(sweep="a", metrics=rss)
    assert only(compared(make_run(sweep="a", seed=1, metrics=rss).parent)).memory == "peak_rss_mib"
    above = make_run(sweep="b", metrics={**rss, "peak_rss_above_mib": [120.0, 130.0]}).parent
    table = only(compared(above))
    assert table.memory == "peak_rss_above_mib"
    assert table.cells["none", "fp32"].figures[table.memory].mean == 130.0


def test_a_margin_and_an_alpha_reach_the_verdicts(make_run: Make) -> None:
    for seed, off in enumerate((0.002, -0.001, 0.0015)):
        make_run(seed=seed, metrics={"test_accuracy": 0.9})
        sweep = make_run("dp", seed=seed, metrics={"test_accuracy": 0.9 + off}).parent
    frame = load(sweep)[0]
    strict, wide = (compare(frame, margin=margin) for margin in (0.001, 0.05))
    found = [only(each).cells["dp", "fp32"].effects["test_accuracy"] for each in (strict, wide)]
    assert [each.verdict for each in found] == ["not decided", "not inferior"]
