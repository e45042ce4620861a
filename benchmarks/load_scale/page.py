"""The table of measurements, and what a run adds."""

import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.load_scale.made_up import EPOCHS
from benchmarks.shared import page
from benchmarks.shared.provenance import today

FIELDS = (
    ("runs", "runs"),
    ("cache", "cache"),
    ("load_s", "load, s"),
    ("compare_s", "compare, s"),
    ("both_s", "both, s"),
    ("both_cpu_s", "both, CPU s"),
    ("import_s", "imports, s"),
    ("peak_mib", "peak memory, MiB"),
    ("above_mib", "above imports, MiB"),
    ("load", "load average"),
)


def cells(row: dict[str, Any]) -> list[str]:
    """A measurement in the columns of the table."""
    words = {
        name: f"{value:.1f}"
        if name == "load"
        else f"{value:.2f}"
        if name.endswith("_s")
        else f"{value:,.0f}"
        for name, value in row.items()
        if isinstance(value, int | float)
    }
    return [words.get(name, str(row[name])) for name, _ in FIELDS]


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The measurements as a Markdown table."""
    return page.table([title for _, title in FIELDS], [*map(cells, rows)])


def growth(rows: Sequence[dict[str, Any]]) -> str:
    """What a run adds in time and memory, from the smallest to the largest size, in words."""
    lines = []
    for kind in ("cold", "warm"):
        of_kind = [row for row in rows if row["cache"] == kind]
        if len(of_kind) < 2:
            continue
        first, last = of_kind[0], of_kind[-1]
        more = last["runs"] - first["runs"]
        added_ms = (last["both_s"] - first["both_s"]) / more * 1000
        added_kib = (last["peak_mib"] - first["peak_mib"]) / more * 1024
        lines.append(f"- {kind}: each run adds {added_ms:.2f} ms and {added_kib:.0f} KiB")
    return "\n".join(lines)


def provenance(rows: Sequence[dict[str, Any]]) -> str:
    """On what, with which versions, when and how often it was measured."""
    import numpy
    import pandas

    from amp_sweep.hardware import cpu_name

    return (
        f"{cpu_name()}, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}, pandas {pandas.__version__}, numpy {numpy.__version__}; "
        f"{today()}; fastest of {rows[0]['repeats']} fresh processes; "
        f"records of {rows[0]['record_bytes'] / 1000:.1f} kB with {EPOCHS} epochs"
    )


def write(out: Path, rows: Sequence[dict[str, Any]], text: str, made_by: str) -> None:
    """Write load-scale.md and load-scale.csv into `out`."""
    words = (
        f"{table(rows)}\n\n{growth(rows)}\n\n{text}.\n\n"
        "Cold: without our cache. Warm: with the one that the call before wrote. Peak memory is "
        "of the whole process. Where the load average is above 2, others used the cores too"
    )
    page.write(out / "load-scale.md", "Loading and comparing many runs", words, made_by)
    page.write_csv(out / "load-scale.csv", rows)
