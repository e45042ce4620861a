"""Records as tables and words."""

from collections.abc import Sequence
from typing import Any

from amp_sweep import record
from amp_sweep.record import Record
from benchmarks.shared.page import table
from benchmarks.shared.provenance import today

KINDS = ("parameters", "gradients", "optimizer", "activations", "input", "workspace",
         "unattributed")  # fmt: skip


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
        f"{today()}; one run per cell (n = 1)."
    )


def notes(runs: Sequence[Record]) -> str:
    """Every note of every run once, for whoever checks the page."""
    found = dict.fromkeys(note for run in runs for note in run.notes)
    return "\n".join(f"- {note}" for note in found) or "- none"
