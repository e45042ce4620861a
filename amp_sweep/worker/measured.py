"""From what each rank measured while it trained to the record's figures, with their reasons."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from amp_sweep.energy import SLOWING, Energy, Nvml, others
from amp_sweep.measure import STEP_FIGURES, StepTimes, step_metrics, throughput
from amp_sweep.worker.build import Cell
from amp_sweep.worker.figures import Figures
from amp_sweep.worker.state import Progress

ENERGY = ("energy_j", "energy_j_per_image")

# Why a figure of the training is null, where it is.
REASONS = {
    **dict.fromkeys(
        ("test_accuracy", "test_loss", "train_loss", "best_test_accuracy"), "no epoch has ended"
    ),
    **dict.fromkeys(STEP_FIGURES, "not timed in a step after the warm-up, or step times are off"),
    "images_per_s": "no step left after the warm-up",
    "compile_s": "nothing was compiled",
    "first_step_s": "no step was taken since the start",
    **dict.fromkeys(
        ("peak_allocated_mib", "peak_reserved_mib", "peak_cached_mib"),
        "no CUDA device; see peak_rss_mib, of the process, and peak_rss_above_mib, above what it "
        "was at its start",
    ),
    **dict.fromkeys(("scaler_final_scale", "scaler_skipped_steps"), "no gradient scaler"),
}

# What one rank says of itself: report.rank_report.
RankReport = Mapping[str, Any]


def trained(
    cell: Cell,
    progress: Progress,
    first_step_s: float | None,
    step_times: list[StepTimes],
    ranks: Sequence[RankReport],
) -> Figures:
    """Accuracy, times, memory and energy of the training so far."""
    figures = Figures()
    figures.metrics = {
        **_accuracy(progress),
        **_times(cell, progress, step_times),
        **step_metrics(step_times),
        "startup_s": max(rank["startup_s"] for rank in ranks),
        "compile_s": max((c.seconds for r in ranks if (c := r["compiled"])), default=None),
        "first_step_s": first_step_s,
        **_memory(ranks),
        **_steps(cell, progress),
    }
    for name, reason in REASONS.items():
        if figures.metrics[name] is None:
            graph = name == "input_work_frac" and cell.speedups.cuda_graph
            timed = graph and cell.config.measure.step_times
            figures.missing([name], "the input is a part of the CUDA graph" if timed else reason)
    contended = [looked for rank in ranks for looked in rank["contended"]]
    if cell.device.type == "cpu":
        contended = [cores_contended(ranks)]
    figures.add(energy_figures([Energy(**rank["energy"]) for rank in ranks], contended))
    return figures


def cost(cell: Cell, segments: Sequence[Mapping[str, Any]]) -> Figures:
    """The price of the devices from each start to the last checkpoint, without the probes."""
    figures, price = Figures(), cell.config.measure.price_per_hour
    if price is None:
        figures.missing(("price_per_hour", "cost"), "measure.price_per_hour is not given")
        return figures
    seconds = time.monotonic() - cell.job.launched_at
    earlier = [segment.get("wall_s") for segment in segments]
    seconds += sum(wall for wall in earlier if isinstance(wall, int | float))
    figures.metrics["price_per_hour"] = price
    figures.metrics["cost"] = price * cell.job.plan.replicas * seconds / 3600
    return figures


def _accuracy(progress: Progress) -> dict[str, Any]:
    last = progress.epochs[-1] if progress.epochs else {}
    names = ("test_accuracy", "test_loss", "train_loss")
    return {**{n: last.get(n) for n in names}, "best_test_accuracy": progress.best_accuracy}


def _times(cell: Cell, progress: Progress, step_times: list[StepTimes]) -> dict[str, Any]:
    times = [row["train_time_s"] for row in progress.epochs]
    batch = cell.job.plan.global_batch
    only = step_times[0] if step_times else StepTimes()
    return {
        "train_time_s": sum(times) + progress.epoch_time_s,
        "images_per_s": throughput(cell.steps_per_epoch * batch, times, only, batch),
    }


def _memory(ranks: Sequence[RankReport]) -> dict[str, Any]:
    allocated = [value for rank in ranks for value in rank["peak_allocated_mib"]]
    reserved = [value for rank in ranks for value in rank["peak_reserved_mib"]]
    return {
        "peak_allocated_mib": allocated or None,
        "peak_reserved_mib": reserved or None,
        "peak_cached_mib": [r - a for r, a in zip(reserved, allocated, strict=True)] or None,
        "peak_rss_mib": [rank["peak_rss_mib"] for rank in ranks],
        "peak_rss_above_mib": [rank["peak_rss_above_mib"] for rank in ranks],
    }


def _steps(cell: Cell, progress: Progress) -> dict[str, Any]:
    done = progress.epoch * cell.steps_per_epoch + progress.step
    scaled = cell.config.precision.scaler
    return {
        "optimizer_steps": done - progress.skipped_steps,
        "scaler_final_scale": progress.scale if scaled else None,
        "scaler_skipped_steps": progress.skipped_steps if scaled else None,
    }


# What others may take of the cores that a cell computes with: the launcher, the system itself.
_TOLERATED = 0.15


def energy_figures(energies: Sequence[Energy], contended: Sequence[bool | None]) -> Figures:
    """Energy over all ranks, and whether any other process used a device.

    Per image: without the first epoch where there are others that are long enough.
    """
    figures = Figures()
    shares = [energy.per_image_of() for energy in energies]
    known = [share for share in shares if share is not None]
    reason = next((energy.reason for energy in energies if energy.reason), None)
    if len(known) == len(shares) and (images := sum(share[1] for share in known)):
        figures.metrics["energy_j"] = sum(energy.joules for energy in energies)
        figures.metrics["energy_j_per_image"] = sum(share[0] for share in known) / images
        if not all(share[2] for share in known):
            figures.reasons["the first epoch, with its warm-up, is in it"] = [ENERGY[1]]
    else:
        figures.missing(ENERGY, reason or "no image was trained on")
    if any(contended) or all(value is not None for value in contended):
        figures.metrics["contended"] = any(contended)
    else:
        figures.missing(
            [*([] if known else ENERGY), "contended"],
            reason or "NVML does not tell which processes use the device",
        )
    return figures


def contended(nvml: Nvml, own: Sequence[int]) -> bool | None:
    """Whether a process that is not ours holds a context on this rank's devices now."""
    count = others(nvml.state(), own)
    return None if count is None else count > 0


def cores_contended(ranks: Sequence[Mapping[str, Any]]) -> bool:
    """Whether other processes left some host fewer cores than the ranks on it compute with.

    Each rank has its `hostname`, its `threads` and its `cpu`: times at the start and the end.
    """
    hosts: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for rank in ranks:
        hosts[rank["hostname"]].append(rank)
    for on_host in hosts.values():
        before, after = on_host[0]["cpu"]
        own_s = sum(rank["cpu"][1].own_s - rank["cpu"][0].own_s for rank in on_host)
        others = (after.host_busy_s - before.host_busy_s - own_s) / (after.at_s - before.at_s)
        wanted = sum(rank["threads"] for rank in on_host)
        if after.host_cores - others < wanted * (1 - _TOLERATED):
            return True
    return False


def device_notes(contended: bool | None, ranks: Sequence[RankReport]) -> list[str]:
    """What the devices' states say about the run's figures."""
    notes = []
    refused = sum(rank["refused_images"] for rank in ranks)
    if refused:
        notes.append(
            f"data.decode=device: {refused:,} times the host decoded a JPEG image that the device "
            "refused; the log names the first"
        )
    compiled = max(
        (c for rank in ranks if (c := rank["compiled"])), key=lambda c: c.uncompiled, default=None
    )
    if compiled and compiled.uncompiled:
        notes.append(
            f"memory.compile: {compiled.uncompiled} of {compiled.layers} convolutions and linear "
            "layers were left uncompiled"
        )
    gpus = [gpu for rank in ranks for gpu in rank["gpus_end"]]
    slowing = {name for gpu in gpus for name in gpu["throttle_reasons"] or ()} & SLOWING
    if slowing:
        notes.append(
            f"the GPU's clock was held down at the end of training: {', '.join(sorted(slowing))}"
        )
    if contended:
        notes.append(
            "contended: another process used the device at the start or the end"
            if gpus
            else "contended: other processes used the cores that this run computed with"
        )
    return notes
