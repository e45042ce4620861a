"""The whole story of a run, from its record alone: `python -m amp_sweep.explain RUN_DIR`."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from amp_sweep import record
from amp_sweep.record import Record, duration

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

STYLES = {record.COMPLETED: "green", record.DIVERGED: "yellow", record.INTERRUPTED: "yellow"}


class Story:
    """Looks up figures of one record, and for those that are null the reason in its notes."""

    def __init__(self, run: Record) -> None:
        self.run = run

    def value(self, name: str) -> Any:
        """A figure; None where there is none."""
        return self.run.metrics.get(name)

    def reason(self, *names: str) -> str:
        """Why a figure is null, from the notes."""
        for note in self.run.notes:
            named, colon, why = note.partition(":")
            if colon and any(name in named.replace(",", " ").split() for name in names):
                return why.strip()
        return "not in the record"

    def figure(self, name: str, form: str = ",.4g", unit: str = "") -> str:
        """A figure, or figures per device, as text; else why it is not known."""
        value = self.value(name)
        if value is None:
            return f"not known: {self.reason(name)}"
        return f"{_number(value, form)}{unit}"


def _number(value: Any, form: str) -> str:
    if isinstance(value, list):
        return ", ".join(_number(item, form) for item in value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return format(value, form)
    return str(value)


def _seconds(value: Any) -> str:
    return duration(value) if isinstance(value, int | float) else "not known"


def _rows(pairs: Sequence[tuple[str, Any]]) -> Table:
    """Names and values in two columns; what is None or empty is left out."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, value in pairs:
        if value is not None and value != "":
            table.add_row(Text(name), Text(str(value)))
    return table


def _section(title: str, *content: RenderableType) -> RenderableType:
    return Group(Text(title, style="bold"), Padding(Group(*content), (0, 0, 1, 2)))


def story(run: Record, folder: Path | None = None) -> Iterator[RenderableType]:
    """The parts of a run's story, in the order in which one would ask."""
    # Records come from other machines: no control sequence of theirs reaches a terminal.
    run = Record(**{name: _printable(value) for name, value in vars(run).items()})
    found = Story(run)
    title = Text(f"{run.cell.get('parallel')} x {run.cell.get('precision')}", style="bold")
    title.append(f", seed {run.cell.get('seed')}: ", style="not bold")
    title.append(run.status, style=STYLES.get(run.status, "dim" if _not_begun(run) else "red"))
    yield title
    if folder is not None:
        yield Text(str(folder), style="dim")
    yield Text()
    if run.metrics.get("diagnosis"):
        yield _section("In a word", Text(f"{run.metrics['diagnosis']}: {_evidence(run)}"))
    yield _section("Asked for", _rows(_asked(run)))
    if run.effective:
        yield _section("What ran", _rows(_ran(run)))
    if run.metrics:
        yield _section("Time", _rows(_time(found)))
        yield _section("Where the time went", _shares(found))
        yield _section("Result", _rows(_result(found)))
        yield _section("Memory", *_memory(found))
        yield _section("Energy and cost", _rows(_energy(found)))
        yield _section("Work", _rows(_work(found)))
        yield _section("Mixed precision", _rows(_precision(found)))
        yield _section("Communication", _rows(_communication(found)))
    if run.environment:
        yield _section("Environment", _rows(_environment(run)))
    if len(run.segments) > 1:
        yield _section("Segments", _rows(_segments(run)))
    if run.notes:
        yield _section("Notes", *(Text(f"- {note}") for note in run.notes))
    if run.error:
        yield _section("Error", *_error(run.error))


def _printable(value: Any) -> Any:
    """The same value with only printable characters and line ends in its texts."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() or c == "\n" else " " for c in value)
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value


def _not_begun(run: Record) -> bool:
    return run.status in (record.PENDING, record.RUNNING)


def _evidence(run: Record) -> str:
    return str(run.metrics.get("diagnosis_evidence") or "no evidence in the record")


def _asked(run: Record) -> list[tuple[str, Any]]:
    flat = record.flatten(run.config)

    def of(name: str) -> Any:
        return flat.get(name)

    width = of("model.width")
    model = f"{of('model.name')}" + (f", width {width:g}" if width not in (None, 1.0) else "")
    lr = of("optimizer.lr")
    return [
        ("command", " ".join(run.overrides) or "no overrides"),
        ("model", model),
        ("data", f"{of('data.name')}, {of('data.image_size')} px, input: {of('data.pipeline')}"),
        ("batch", f"{of('data.batch_size')} ({of('data.batch_mode')})"),
        ("epochs", of("epochs")),
        ("parallel", f"{of('parallel.name')}, devices {of('parallel.devices')}"),
        ("precision", _asked_precision(flat)),
        ("optimizer", f"{of('optimizer.name')}, lr {lr:g}" if lr is not None else None),
        ("scheduler", of("scheduler.name")),
    ]


def _asked_precision(flat: dict[str, Any]) -> str:
    words = [str(flat.get("precision.name"))]
    if flat.get("precision.autocast"):
        words.append(f"autocast, dtype {flat.get('precision.dtype')}")
    if flat.get("precision.scaler"):
        words.append("gradient scaler")
    if flat.get("precision.tf32"):
        words.append("TF32")
    return ", ".join(words)


def _ran(run: Record) -> list[tuple[str, Any]]:
    ran = run.effective
    names = ran.get("device_names") or []
    devices = ", ".join(dict.fromkeys(str(name) for name in names))
    batch = f"{ran.get('global_batch')} a step, {ran.get('per_device_batch')} a device"
    speedups = [
        f"{name}={ran[name]}"
        for name in ("compile", "cuda_graph", "fused_layers", "master_weights")
        if ran.get(name) not in (None, False, "off")
    ]
    return [
        ("devices", f"{ran.get('replicas')} x {devices}" if devices else ran.get("device_type")),
        ("processes", ran.get("world_size")),
        ("backend", ran.get("backend")),
        ("batch", batch),
        ("steps", f"{ran.get('steps')} in all"),
        ("images", f"{ran.get('train_images')} to train, {ran.get('test_images')} to test"),
        ("input", ran.get("data_placement")),
        ("autocast", ran.get("autocast_dtype") or "off"),
        ("computed in", _layers(ran) or ", ".join(ran.get("observed_dtypes") or [])),
        ("gradient scaler", "on" if ran.get("scaler_enabled") else "off"),
        ("TF32", _tf32(ran)),
        ("cudnn benchmark", _switch(ran.get("cudnn_benchmark"))),
        ("memory format", ran.get("memory_format")),
        ("speed-ups", ", ".join(speedups)),
        ("threads", ran.get("threads")),
    ]


def _switch(value: Any) -> str | None:
    return None if value is None else ("on" if value else "off")


def _tf32(ran: dict[str, Any]) -> str | None:
    matmul, convolutions = ran.get("tf32_matmul"), ran.get("tf32_cudnn")
    if matmul is None and convolutions is None:
        return None
    return f"matrix products {_switch(matmul)}, convolutions {_switch(convolutions)}"


def _layers(ran: dict[str, Any]) -> str:
    """Observed dtypes per kind of layer; replicas that agree are told once."""
    told: dict[str, list[str]] = {}
    for row in ran.get("observed_dtypes_by_layer") or []:
        kinds = [
            f"{kind} {'/'.join(names)}"
            for kind, names in row.items()
            if kind not in ("rank", "device")
        ]
        told.setdefault(", ".join(kinds), []).append(f"rank {row.get('rank')} {row.get('device')}")
    if len(told) == 1:
        (words, places), *_ = told.items()
        return words + (f" (alike on {len(places)} replicas)" if len(places) > 1 else "")
    return "; ".join(f"{' and '.join(places)}: {words}" for words, places in told.items())


def _time(found: Story) -> list[tuple[str, Any]]:
    percentiles = [found.value(f"step_ms_{name}") for name in ("p50", "p95", "p99")]
    steps = (
        " / ".join(f"{value:,.2f}" for value in percentiles) + " ms (p50 / p95 / p99)"
        if all(value is not None for value in percentiles)
        else f"not known: {found.reason('step_ms_p50')}"
    )
    compiled = found.value("compile_s")
    return [
        ("start-up", _seconds(found.value("startup_s"))),
        ("compiling", _seconds(compiled) if compiled else None),
        ("first step", _seconds(found.value("first_step_s"))),
        ("training", _seconds(found.value("train_time_s"))),
        ("whole run", _seconds(found.value("wall_time_s"))),
        ("a step", steps),
        ("images/s", found.figure("images_per_s", ",.1f")),
    ]


def _shares(found: Story) -> RenderableType:
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


def _result(found: Story) -> list[tuple[str, Any]]:
    return [
        ("test accuracy", found.figure("test_accuracy", ".4f")),
        ("best epoch's", found.figure("best_test_accuracy", ".4f")),
        ("train loss", found.figure("train_loss", ".4f")),
        ("optimizer steps", found.figure("optimizer_steps", ",d")),
    ]


def _memory(found: Story) -> Iterator[RenderableType]:
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
    yield _rows(
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
    return f"{_number(value, ',.0f')} MiB" if value is not None else None


def _energy(found: Story) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = [
        ("energy", found.figure("energy_j", ",.0f", " J")),
        ("per image", found.figure("energy_j_per_image", ".4g", " J")),
        ("other programs on the device", _contended(found)),
    ]
    for moment, name in (("gpus_start", "start"), ("gpus_end", "end")):
        segment = found.run.segments[-1] if found.run.segments else {}
        for index, gpu in enumerate(segment.get(moment) or []):
            rows.append((f"GPU {index} at the {name}", _gpu(gpu)))
    price = found.value("price_per_hour")
    if price is not None:
        rows.append(("cost", f"{found.value('cost'):.4f} at {price:g} per device and hour"))
    return rows


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


def _work(found: Story) -> list[tuple[str, Any]]:
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


def _precision(found: Story) -> list[tuple[str, Any]]:
    enabled = bool(found.run.effective.get("scaler_enabled"))
    words = scaler_words(found.run.metrics, enabled)
    rows = [
        ("gradients", words or f"not looked at: {found.reason('underflow_frac')}"),
    ]
    if enabled:
        rows.append(("final scale", found.figure("scaler_final_scale", "g")))
        rows.append(("skipped steps", found.figure("scaler_skipped_steps", ",d")))
    return rows


def _communication(found: Story) -> list[tuple[str, Any]]:
    value = found.value("communication_frac")
    if value is None:
        return [("exchange of gradients", f"not known: {found.reason('communication_frac')}")]
    if (found.run.effective.get("world_size") or 1) == 1:
        return [("exchange of gradients", "none: one process")]
    return [("exchange of gradients", f"adds {value:.1%} to a step, not hidden behind other work")]


def _environment(run: Record) -> list[tuple[str, Any]]:
    found = run.environment
    commit = found.get("git_commit")
    changed = ", with uncommitted changes" if found.get("git_dirty") else ""
    versions = ", ".join(
        f"{name} {found[name]}"
        for name in ("python", "torch", "torchvision", "cuda", "driver")
        if found.get(name)
    )
    return [
        ("host", found.get("hostname")),
        ("GPU", found.get("gpu")),
        ("CPU", f"{found.get('cpu')}, {found.get('cores')} cores for this run"),
        ("versions", versions),
        ("commit", f"{commit}{changed}" if commit else None),
        ("SLURM jobs", ", ".join(found.get("slurm_job_ids") or [])),
    ]


def _segments(run: Record) -> list[tuple[str, Any]]:
    return [
        (
            str(segment.get("started_at")),
            f"epochs {segment.get('from_epoch')} to {segment.get('to_epoch')} on "
            f"{segment.get('hostname') or segment.get('device')}",
        )
        for segment in run.segments
    ]


def _error(error: dict[str, Any]) -> Iterator[RenderableType]:
    rank = error.get("rank")
    where = f" (rank {rank})" if rank is not None else ""
    yield Text(f"{error.get('type')}{where}: {error.get('message')}", style="red")
    if error.get("traceback"):
        yield Text(str(error["traceback"]).rstrip(), style="dim")


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point; 1 where a record cannot be read."""
    parser = argparse.ArgumentParser(
        prog="amp-sweep-explain",
        description="What was asked, what ran, what it cost, and why.",
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="or a sweep's folder")
    options = parser.parse_args(arguments)
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    code = 0
    for folder in options.runs:
        files = record.find(folder)
        if not files:
            errors.print(Text(f"error: no run in {folder}"), soft_wrap=True)
            code = 1
        for file in files:
            try:
                run = record.read(file)
            except record.RecordError as error:
                errors.print(Text(f"error: {error}"), soft_wrap=True)
                code = 1
                continue
            for part in story(run, file.parent):
                console.print(part)
    return code


if __name__ == "__main__":
    sys.exit(main())
