"""The table, and where its figures come from."""

import platform
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.larger_data.cells import CELLS
from benchmarks.larger_data.work import Work
from benchmarks.shared.page import so_far
from benchmarks.shared.provenance import commit, cores, today


def median(results: Sequence[dict[str, Any]], name: str) -> float | None:
    """Over the repeats; None where no repeat has it."""
    values = [result[name] for result in results if result.get(name) is not None]
    return statistics.median(values) if values else None


COLUMNS = (
    ("data_wait_frac", "wait share", "{:.3f}"),
    ("main_mib_half", "main, MiB: first half", "{:,.0f}"),
    ("main_mib_end", "second half", "{:,.0f}"),
    ("all_mib_half", "all processes, MiB: first half", "{:,.0f}"),
    ("all_mib_end", "second half", "{:,.0f}"),
    ("gpu_mib", "GPU, MiB", "{:,.0f}"),
)


def table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The results in Markdown: medians over the repeats."""
    titles = ["row", "images/s", "over plain_uint8", *(title for _, title, _ in COLUMNS)]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    base = median(found.get("plain_uint8", []), "images_per_s")
    for row, results in found.items():
        rate = median(results, "images_per_s")
        if rate is None:
            lines.append(f"| {row} | {results[0]['absent']} |" + " - |" * (len(titles) - 2))
            continue
        ratio = "-" if base is None or row in CELLS else f"{rate / base:.2f}"
        cells = [row, f"{rate:,.0f}", ratio]
        for name, _, form in COLUMNS:
            value = median(results, name)
            cells.append("-" if value is None else form.format(value))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def provenance(work: Work, repeats: int, facts: dict[str, Any]) -> list[str]:
    """Where the figures come from."""
    import torch
    import torchvision

    from amp_sweep.hardware import cpu_name

    device = torch.cuda.get_device_name(0) if work.device == "cuda" else cpu_name()
    return [
        f"{work.images:,} JPEG files of {work.size} px, {facts['mean_kb']:.1f} kB on average, made "
        f"up; to {work.image_size} px, batch {work.batch}, {work.workers} loader processes, "
        f"{cores()} cores",
        f"made in {facts['make_s']:.0f} s and prepared (listed, decoded once) in "
        f"{facts['prepare_s']:.0f} s; 0 where they were there already",
        f"cells: AlexNet, width {work.width:g}, precision={work.precision}, none; their first "
        "epoch does not count",
        f"device: {device}; torch {torch.__version__}, torchvision {torchvision.__version__}, CUDA "
        f"{torch.version.cuda}, Python {platform.python_version()}",
        f"{work.seconds:g} s a row, {repeats} repeat(s) in turn; load average "
        f"{facts['load']:.1f} at the start; commit {commit()}; {today()}",
        "memory: peaks of resident memory in the two halves of a row, start-up in the first; "
        "what processes share counts in each",
    ]  # fmt: skip


def write(
    out: Path | None,
    work: Work,
    repeats: int,
    facts: dict[str, Any],
    found: dict[str, list[dict[str, Any]]],
) -> str:
    """The table so far, in the folder that was asked for."""
    there = {row: results for row, results in found.items() if results}
    lines = provenance(work, repeats, facts)
    everything = {
        "work": {**asdict(work), "root": None},  # a path of this machine
        "facts": facts,
        "provenance": lines,
        "rows": there,
    }
    return so_far(table(there), lines, out, everything)
