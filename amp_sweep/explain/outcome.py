"""What a run took and gave: time, memory, energy, work, precision."""

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from amp_sweep.explain.lookup import Story, number, rows, seconds

KINDS = ("parameters", "gradients", "optimizer", "activations", "input", "workspace",
         "unattributed")  # fmt: skip
SHARES = {
    "input": "waiting for input",
    "gaps": "nothing to do",
    "compute": "matrix products, convolutions",
    "memory": "other work on the device",
    "communication": "waiting for gradients",
}
BAR = 30

# The scaler mattered where it kept at least this share of the gradient's elements from zero.
MATTERS = 0.001


def times(found: Story) -> list[tuple[str, Any]]:
    """How long each phase took."""
    percentiles = [found.value(f"step_ms_{name}") for name in ("p50", "p95", "p99")]
    steps = (
        " / ".join(f"{value:,.2f}" for value in percentiles) + " ms (p50 / p95 / p99)"
        if all(value is not None for value in percentiles)
        else f"not known: {found.reason('step_ms_p50')}"
    )
    compiled = found.value("compile_s")
    return [
        ("start-up", seconds(found.value("startup_s"))),
        ("compiling", seconds(compiled) if compiled else None),
        ("first step", seconds(found.value("first_step_s"))),
        ("training", seconds(found.value("train_time_s"))),
        ("whole run", seconds(found.value("wall_time_s"))),
        ("a step", steps),
        ("images/s", found.figure("images_per_s", ",.1f")),
    ]


def shares(found: Story) -> RenderableType:
    """Where the time of a step went, as bars."""
    table = Table.grid(padding=(0, 2))
    known = False
    for name, words in SHARES.items():
        share = found.value(f"share_{name}")
        if share is None:
            continue
        known = True
        full = round(share * BAR)
        table.add_row(
            Text(words), Text(f"{share:.0%}", justify="right"), Text("█" * full, style="cyan")
        )
    if not known:
        return Text(f"not known: {found.reason('share_input', 'share_compute')}")
    missing = [name for name in SHARES if found.value(f"share_{name}") is None]
    if missing:
        return Group(
            table, Text(f"{', '.join(missing)}: not known: {found.reason(f'share_{missing[0]}')}")
        )
    return table


def result(found: Story) -> list[tuple[str, Any]]:
    """What the training reached."""
    return [
        ("test accuracy", found.figure("test_accuracy", ".4f")),
        ("best epoch's", found.figure("best_test_accuracy", ".4f")),
        ("train loss", found.figure("train_loss", ".4f")),
        ("optimizer steps", found.figure("optimizer_steps", ",d")),
    ]


def memory(found: Story) -> Iterator[RenderableType]:
    """Where the memory went at the peak of a step, per device, and the peaks of the training."""
    peaks = found.value("memory_probe_peak_mib")
    if peaks:
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("at the peak of a step, MiB")
        for device in range(len(peaks)):
            table.add_column(f"device {device}", justify="right")
            table.add_column("", justify="right")
        for kind in KINDS:
            _memory_row(table, kind, found.value(f"memory_{kind}_mib"), peaks)
            if kind == "activations":
                saved = found.value("memory_activations_saved_mib")
                _memory_row(table, "  of which saved for backward", saved, peaks, "dim")
            if kind == "input":
                resident = found.value("memory_input_resident_mib")
                _memory_row(table, "  of which data set", resident, peaks, "dim")
        sums = [
            sum((found.value(f"memory_{kind}_mib") or [0.0] * len(peaks))[device] for kind in KINDS)
            for device in range(len(peaks))
        ]
        _memory_row(table, "sum", sums, peaks, "bold")
        yield table
    else:
        yield Text(f"breakdown not known: {found.reason('memory_parameters_mib')}")
    yield rows(
        [
            ("peak allocated in training", _mib(found, "peak_allocated_mib")),
            ("peak reserved", _mib(found, "peak_reserved_mib")),
            ("reserved, not allocated", _mib(found, "peak_cached_mib")),
            ("process (RSS)", _mib(found, "peak_rss_mib")),
            ("process above its start", _mib(found, "peak_rss_above_mib")),
        ]
    )


def _memory_row(
    table: Table, name: str, values: list[float] | None, peaks: list[float], style: str = ""
) -> None:
    if values is None:
        return
    cells = []
    for value, peak in zip(values, peaks, strict=True):
        cells += [f"{value:,.1f}", f"{value / peak:.1%}" if peak else ""]
    table.add_row(name, *cells, style=style)


def _mib(found: Story, name: str) -> str | None:
    value = found.value(name)
    return f"{number(value, ',.0f')} MiB" if value is not None else None


def energy(found: Story) -> list[tuple[str, Any]]:
    """Joules, the GPUs' state, other programs on them, the cost."""
    told: list[tuple[str, Any]] = [
        ("energy", found.figure("energy_j", ",.0f", " J")),
        ("per image", found.figure("energy_j_per_image", ".4g", " J")),
        ("other programs on the device", _contended(found)),
    ]
    for moment, name in (("gpus_start", "start"), ("gpus_end", "end")):
        segment = found.run.segments[-1] if found.run.segments else {}
        for index, gpu in enumerate(segment.get(moment) or []):
            told.append((f"GPU {index} at the {name}", _gpu(gpu)))
    price = found.value("price_per_hour")
    if price is not None:
        told.append(("cost", f"{found.value('cost'):.4f} at {price:g} per device and hour"))
    return told


def _contended(found: Story) -> str:
    value = found.value("contended")
    if value is None:
        return f"not known: {found.reason('contended')}"
    return "yes: times are not to be trusted" if value else "no"


def _gpu(gpu: dict[str, Any]) -> str:
    words = [
        f"SM {gpu.get('sm_clock_mhz')} MHz",
        f"memory {gpu.get('memory_clock_mhz')} MHz",
        f"power limit {gpu.get('power_limit_w')} W",
        f"{gpu.get('temperature_c')} C",
    ]
    held = gpu.get("throttle_reasons")
    if held:
        words.append(f"clock held by: {', '.join(held)}")
    return ", ".join(words)


def work(found: Story) -> list[tuple[str, Any]]:
    """FLOPs and the share of what the device can do."""
    flops = found.value("flops_per_image")
    return [
        (
            "per image",
            f"{flops / 1e9:,.3f} GFLOP, forward and backward"
            if flops is not None
            else found.figure("flops_per_image"),
        ),
        ("achieved", found.figure("achieved_tflops", ",.3g", " TFLOP/s a device")),
        ("ceiling", found.figure("ceiling_tflops", ",.3g", " TFLOP/s, measured on this device")),
        ("share of it", found.figure("mfu", ".1%")),
        ("copy ceiling", found.figure("ceiling_gb_per_s", ",.0f", " GB/s")),
    ]


def scaler_words(metrics: dict[str, Any], scaler_enabled: bool) -> str | None:
    """Did, or would, a gradient scaler matter? None where it was not looked at."""
    without, scaled = metrics.get("underflow_frac_unscaled"), metrics.get("underflow_frac_scaled")
    if without is None or scaled is None:
        return None
    kept = without - scaled
    figures = (
        f"{without:.3%} of the gradient's elements become zero in half precision without a scale, "
        f"{scaled:.3%} with {metrics.get('underflow_scale') or 0:g}"
    )
    if scaler_enabled:
        verdict = "the scaler mattered" if kept >= MATTERS else "the scaler did not matter"
    else:
        verdict = "a scaler would matter" if kept >= MATTERS else "a scaler would not matter"
    return f"{verdict} at the end of training: {figures}"


def precision(found: Story) -> list[tuple[str, Any]]:
    """Whether a scaler mattered, and what its scale did."""
    enabled = bool(found.run.effective.get("scaler_enabled"))
    words = scaler_words(found.run.metrics, enabled)
    told = [
        ("gradients", words or f"not looked at: {found.reason('underflow_frac')}"),
    ]
    if enabled:
        told.append(("final scale", found.figure("scaler_final_scale", "g")))
        told.append(("skipped steps", found.figure("scaler_skipped_steps", ",d")))
    return told


def communication(found: Story) -> list[tuple[str, Any]]:
    """What the exchange of gradients adds to a step."""
    value = found.value("communication_frac")
    effective = found.run.effective
    if effective.get("replicas") == 1 or (value is not None and effective.get("world_size") == 1):
        return [("exchange of gradients", "none: one process")]
    if value is None:
        return [("exchange of gradients", f"not known: {found.reason('communication_frac')}")]
    return [("exchange of gradients", f"adds {value:.1%} to a step, not hidden behind other work")]
