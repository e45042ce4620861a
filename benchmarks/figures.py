"""The figures that show what a record says about a run, from real sweeps, as one Markdown page.

    python -m benchmarks.figures --images FOLDER --out RESULTS           # one GPU
    python -m benchmarks.figures --images FOLDER --out RESULTS --two     # two GPUs
    python -m benchmarks.figures --cpu --out RESULTS                     # small, on a CPU

FOLDER holds CIFAR-10 as JPEG files (train/<class>/*.jpg, test/<class>/*.jpg). The page goes to
RESULTS/figures-*.md, all records to RESULTS/records-*.json; checkpoints are not kept.
"""

import argparse
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amp_sweep import record
from amp_sweep.record import Record
from benchmarks.children import REPOSITORY, environment

KINDS = ("parameters", "gradients", "optimizer", "activations", "input", "workspace",
         "unattributed")  # fmt: skip


@dataclass(frozen=True)
class Size:
    """How much is trained: enough for a steady figure, little enough for minutes."""

    article: list[str]  # the article's settings on the input of the tool
    written: list[str]  # and on its own
    overhead: list[str]
    few: list[str]  # images for what needs no steady rate
    large_batch: int
    precisions: str = "fp32,autocast,scaler"  # of the nine cells


def gpu_size(images: Path) -> Size:
    """Some seconds of training a cell on a data-centre GPU."""
    root = f"data.root={images}"
    return Size(
        article=[
            *("experiment=article", "data=imagefolder_article", root, "epochs=2"),
            *("data.train_images=18432", "data.test_images=1024"),
        ],
        written=[
            *("experiment=article_as_written", "data=imagefolder_as_written", root, "epochs=2"),
            *("data.train_images=1920", "data.test_images=128"),
        ],
        overhead=["--pairs", "100", "--steps", "40"],
        few=["data.train_images=3072"],
        large_batch=1024,
    )


def cpu_size() -> Size:
    """The same paths in seconds on a CPU: the figures mean little."""
    small = [
        *("model.width=0.1", "data=synthetic", "data.image_size=64", "data.batch_size=16"),
        *("data.train_images=64", "data.test_images=16", "data.classes=4"),
        *("data.source_size=16", "epochs=2", "device=cpu"),
    ]
    return Size(
        article=small,
        written=[*small, "data.pipeline=pil"],
        overhead=[
            *("--pairs", "3", "--steps", "2", "--epoch", "20", "--size", "64", "--width", "0.1"),
            *("--batch", "4", "--precision", "fp32", "--device", "cpu"),
        ],
        few=["data.train_images=32"],
        large_batch=32,
        precisions="fp32,scaler",
    )


def train(runs: Path, name: str, *overrides: str) -> list[Record]:
    """A sweep through the command line; its records. What it prints goes to stderr."""
    command = [sys.executable, "-m", "amp_sweep.train", "-m", f"outputs={runs}", f"name={name}"]
    started = time.monotonic()
    subprocess.run(
        [*command, "track=none", *overrides],
        env=environment(),
        stdout=sys.stderr,
        stderr=sys.stderr,
        check=False,
    )
    print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    found = [record.read(path) for path in record.find(runs / name)]
    for checkpoints in runs.glob(f"{name}/*/checkpoints"):
        shutil.rmtree(checkpoints)
    return found


def overhead(arguments: Sequence[str]) -> dict[str, Any]:
    """The figures of `measuring_overhead`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measuring_overhead", "--json", *arguments],
        env=environment(),
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return {}
    values: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return values


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def number(value: Any, form: str = ",.0f", missing: str = "-") -> str:
    """A figure, or a list of them, as text."""
    if isinstance(value, list):
        return ", ".join(number(item, form, missing) for item in value)
    return missing if value is None else format(value, form)


def cell_name(run: Record) -> str:
    """`none x fp32`, or how it ended where it did not complete."""
    name = f"{run.cell['parallel']} x {run.cell['precision']}"
    backend = run.effective.get("backend")
    name += f" ({backend})" if backend == "gloo" else ""
    if run.status == record.COMPLETED:
        return name
    return f"{name}: {run.status} ({(run.error or {}).get('message')})"


def ordered(runs: Sequence[Record]) -> list[Record]:
    """In the order of the article's table."""
    parallel, precision = ("none", "dp", "ddp"), ("fp32", "autocast", "scaler")
    return sorted(
        runs,
        key=lambda r: (parallel.index(r.cell["parallel"]), precision.index(r.cell["precision"])),
    )


def diagnoses(runs: Sequence[tuple[str, Record]]) -> str:
    """Shares of the time and the word they lead to."""
    shares = ("input", "gaps", "compute", "memory", "communication")
    rows = []
    for label, run in runs:
        metrics = run.metrics
        known = [metrics.get(f"share_{name}") for name in shares]
        rows.append(
            [
                f"{label}{cell_name(run)}",
                number(metrics.get("images_per_s")),
                *(number(share, ".2f") for share in known),
                metrics.get("diagnosis") or "-",
                metrics.get("diagnosis_evidence") or "-",
            ]
        )
    return table(["cell", "images/s", *shares, "diagnosis", "evidence"], rows)


def memories(runs: Sequence[Record]) -> str:
    """Where the memory went at the peak of a step, with its sum, per device."""
    rows = []
    for run in runs:
        metrics = run.metrics
        peaks = metrics.get("memory_probe_peak_mib") or []
        for device, peak in enumerate(peaks):
            parts = [metrics[f"memory_{kind}_mib"][device] for kind in KINDS]
            allocated = (metrics.get("peak_allocated_mib") or [None] * len(peaks))[device]
            reserved = (metrics.get("peak_reserved_mib") or [None] * len(peaks))[device]
            rows.append(
                [
                    cell_name(run),
                    run.effective.get("per_device_batch"),
                    device,
                    *(number(part, ",.1f") for part in parts),
                    number(sum(parts), ",.1f"),
                    number(peak, ",.1f"),
                    f"{parts[-1] / peak:.2%}",
                    number(metrics["memory_activations_saved_mib"][device], ",.1f"),
                    number(metrics["memory_input_resident_mib"][device], ",.1f"),
                    number(metrics["memory_rounding_mib"][device], ",.1f"),
                    number(allocated, ",.1f"),
                    number(reserved, ",.1f"),
                ]
            )
    return table(
        ["cell", "batch", "device", *KINDS, "sum", "probe peak", "unattributed %", "of which saved",
         "data set", "rounding", "training: allocated", "reserved"],
        rows,
    )  # fmt: skip


def energies(runs: Sequence[Record]) -> str:
    """Joules, and what the device did for them."""
    rows = []
    for run in runs:
        metrics = run.metrics
        gpus = (run.segments[-1].get("gpus_end") if run.segments else None) or [{}]
        rows.append(
            [
                cell_name(run),
                number(metrics.get("images_per_s")),
                number(metrics.get("energy_j"), ",.0f"),
                number(metrics.get("energy_j_per_image"), ".4f"),
                gpus[0].get("power_limit_w", "-"),
                gpus[0].get("sm_clock_mhz", "-"),
                ", ".join(gpus[0].get("throttle_reasons") or []) or "none",
                metrics.get("contended"),
            ]
        )
    head = ["cell", "images/s", "energy (J)", "J per image", "power limit (W)", "SM clock (MHz)"]
    return table([*head, "clock held by", "contended"], rows)


def work(runs: Sequence[Record]) -> str:
    """FLOPs, ceilings and what half precision lost."""
    rows = [
        [
            cell_name(run),
            number(run.effective.get("per_device_batch")),
            number((run.metrics.get("flops_per_image") or 0) / 1e9, ".3f"),
            number(run.metrics.get("achieved_tflops"), ".2f"),
            number(run.metrics.get("ceiling_tflops"), ".1f"),
            number(run.metrics.get("mfu"), ".3f"),
            number(run.metrics.get("ceiling_gb_per_s"), ",.0f"),
            number(run.metrics.get("underflow_frac"), ".4f"),
            number(run.metrics.get("underflow_frac_unscaled"), ".4f"),
            number(run.metrics.get("underflow_frac_scaled"), ".4f"),
            number(run.metrics.get("communication_frac"), ".3f"),
        ]
        for run in runs
    ]
    return table(
        ["cell", "batch", "GFLOP/image", "TFLOP/s", "ceiling", "MFU", "copy GB/s", "underflow",
         "unscaled", "scaled", "communication"],
        rows,
    )  # fmt: skip


def provenance(runs: Sequence[Record]) -> str:
    """Hardware, versions, commit, date, n."""
    if not runs:
        return "No run yet."
    first = next((run for run in runs if run.environment), runs[0])
    found = first.environment
    device = found.get("gpu") or found.get("cpu")
    count = max(run.effective.get("replicas") or 1 for run in runs)
    dirty = " with changes" if found.get("git_dirty") else ""
    return (
        f"{count} x {device}, driver {found.get('driver')}, torch {found.get('torch')}, CUDA "
        f"{found.get('cuda')}, Python {found.get('python')}, {found.get('cores')} cores; commit "
        f"{(found.get('git_commit') or 'unknown')[:7]}{dirty}; "
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}; one run per cell (n = 1)."
    )


def notes(runs: Sequence[Record]) -> str:
    """Every note of every run once, for whoever checks the page."""
    found = dict.fromkeys(note for run in runs for note in run.notes)
    return "\n".join(f"- {note}" for note in found) or "- none"


Part = tuple[str, Callable[[], tuple[list[Record], str]]]


def one_device(size: Size, runs: Path) -> list[Part]:
    """What one device can show, the most telling first."""
    plain: list[Record] = []

    def memory() -> tuple[list[Record], str]:
        axes = ("parallel=none", "precision=fp32,scaler")
        large = f"data.batch_size={size.large_batch}"
        plain.extend(ordered(train(runs, "nine", *size.article, *axes)))
        found = [*plain, *ordered(train(runs, "large", *size.article, *axes, large))]
        return found, memories(found)

    def limits() -> tuple[list[Record], str]:
        written = train(runs, "written", *size.written, "parallel=none", "precision=fp32")
        labelled = [("as written: ", run) for run in written]
        return written, diagnoses([*labelled, *(("resident: ", run) for run in plain)])

    def cost() -> tuple[list[Record], str]:
        return [], _overhead_words(overhead(size.overhead))

    def row(parallel: str) -> Part:
        def cells() -> tuple[list[Record], str]:
            # The cells of the first part are there already, and are not trained again.
            axes = (f"parallel={parallel}", f"precision={size.precisions}")
            done = train(runs, "nine", *size.article, *axes)
            found = ordered([run for run in done if run.cell["parallel"] == parallel])
            labelled = [("", run) for run in found]
            return found, "\n\n".join([energies(found), diagnoses(labelled), work(found)])

        return f"The nine cells, {parallel}: energy, limits, work", cells

    return [
        ("Where the memory went (MiB)", memory),
        ("The article's cell as written, and on a resident input", limits),
        ("What measuring costs", cost),
        *map(row, ("none", "dp", "ddp")),
    ]


def _overhead_words(found: dict[str, Any]) -> str:
    if not found:
        return "Not measured: the benchmark failed."
    return (
        f"All measuring on against all off, interleaved: {found['ratio']:.4f} (95% interval "
        f"{found['low']:.4f} to {found['high']:.4f}; n = {found['pairs']} pairs of windows of "
        f"{found['steps']} steps of {found['step_ms']:.2f} ms; {found['device']})."
    )


def two_devices(size: Size, runs: Path) -> list[Part]:
    """What only two devices show, in few steps each."""
    few = ("parallel.devices=2", *size.few)

    def ddp() -> tuple[list[Record], str]:
        found = train(runs, "two", *size.article, *few, "parallel=ddp", "precision=fp32,scaler")
        return ordered(found), _all_of(ordered(found))

    def dp() -> tuple[list[Record], str]:
        found = train(runs, "two", *size.article, *few, "parallel=dp", "precision=fp32,scaler")
        return ordered(found), _all_of(ordered(found))

    def gloo() -> tuple[list[Record], str]:
        axes = ("parallel=ddp", "precision=fp32", "parallel.backend=gloo")
        found = train(runs, "gloo", *size.article, *few, *axes)
        return found, _all_of(found)

    return [("ddp over NCCL", ddp), ("dp", dp), ("ddp over gloo", gloo)]


def _all_of(found: Sequence[Record]) -> str:
    labelled = [("", run) for run in found]
    return "\n\n".join([memories(found), diagnoses(labelled), work(found), energies(found)])


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; 1 when a cell did not complete."""
    parser = argparse.ArgumentParser(description="Figures that explain themselves, as a page.")
    parser.add_argument("--images", type=Path, help="CIFAR-10 as JPEG files, in folders")
    parser.add_argument("--out", type=Path, required=True, help="folder for the page")
    parser.add_argument("--two", action="store_true", help="what two GPUs show")
    parser.add_argument("--parts", type=int, help="only the first so many parts")
    parser.add_argument("--cpu", action="store_true", help="small, on a CPU")
    options = parser.parse_args(arguments)
    if not options.cpu and options.images is None:
        parser.error("--images is needed, or --cpu")
    size = cpu_size() if options.cpu else gpu_size(options.images.absolute())
    kind = "two" if options.two else "one"
    options.out.mkdir(parents=True, exist_ok=True)
    runs: dict[str, Record] = {}
    sections: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        parts = (two_devices if options.two else one_device)(size, Path(folder))
        for title, part in parts[: options.parts]:
            started = time.monotonic()
            found, text = part()
            seconds = time.monotonic() - started
            print(f"part {title!r}: {seconds:.0f} s", file=sys.stderr, flush=True)
            runs |= {f"{run.name} {run.fingerprint}": run for run in found}
            sections.append(f"## {title}\n\n{text}\n\n({seconds:.0f} s)")
            # After each part, so that what is cut short keeps what it has.
            page = "\n\n".join(
                [
                    "# Figures that explain themselves",
                    provenance([*runs.values()]),
                    *sections,
                    f"## Notes in the records\n\n{notes([*runs.values()])}\n",
                ]
            )
            (options.out / f"figures-{kind}.md").write_text(page, encoding="utf-8")
            (options.out / f"records-{kind}.json").write_text(
                json.dumps([vars(run) for run in runs.values()], indent=1), encoding="utf-8"
            )
    print(page)
    return 0 if all(run.status == record.COMPLETED for run in runs.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
