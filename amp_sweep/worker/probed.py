"""From what the probes found on each rank to the record's figures, with their reasons."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from amp_sweep import data, diagnose, models, probes
from amp_sweep.probes import Findings, Subject
from amp_sweep.worker.build import Cell
from amp_sweep.worker.figures import Figures
from amp_sweep.worker.state import Progress

WORK = ("achieved_tflops", "mfu")
SHARES = tuple(f"share_{name}" for name in diagnose.SHARES)

# Every figure that the probes lead to.
PROBED = (
    *probes.MEMORY,
    "flops_per_image",
    *probes.UNDERFLOW,
    "ceiling_tflops",
    "ceiling_gb_per_s",
    *WORK,
    "communication_frac",
    *SHARES,
    "diagnosis",
    "diagnosis_evidence",
)

# What some of them are made of: in no record, but for the reason why it could not be had.
INGREDIENTS = (*probes.BUSY, "busy_window_s", "communication_s")


def no_probes(reason: str) -> Figures:
    """Nothing was probed."""
    figures = Figures()
    figures.missing(PROBED, reason)
    return figures


def subject(cell: Cell, progress: Progress, driver: str | None) -> Subject:
    """The cell as the probes see it; call it after the last checkpoint."""
    settings, plan = cell.config, cell.job.plan
    order = data.epoch_order(cell.prepared.train_count, settings.seed, 0, settings.data.shuffle)
    indices = data.rank_batches(order, plan.global_batch, cell.ranks.rank, cell.ranks.world_size)
    rows = progress.epochs[1:] or progress.epochs
    rates = [row["images_per_s"] for row in rows]
    return Subject(
        trainer=cell.trainer,
        loss=cell.loss,
        split=cell.train,
        stored=[*cell.train.stored(), *cell.test.stored()],
        indices=indices[:4],
        devices=cell.devices,
        ranks=cell.ranks,
        step_s=plan.global_batch / statistics.harmonic_mean(rates) if rates else None,
        allowed_s=settings.measure.probes_s,
        train_s=sum(row["train_time_s"] for row in progress.epochs),
        autocast_dtype=cell.autocast_dtype,
        tf32=settings.precision.tf32,
        init_scale=settings.precision.init_scale,
        device_name=cell.device_name(cell.device),
        driver=driver,
        cache=data.cache_dir() / "ceilings",
        plain_network=lambda: _plain_network(cell),
        image_size=settings.data.image_size,
        eager=cell.speedups.compile == "off",
    )


def _plain_network(cell: Cell) -> nn.Module:
    """The network as it is defined: layers that were fused do other sums for the same result."""
    model = cell.config.model
    return models.build_for_shapes(model.name, cell.outputs, width=model.width)


def figures_of(
    ranks: Sequence[Findings],
    *,
    images_per_s: float | None,
    wait_frac: float | None,
    global_batch: int,
    replicas: int,
    effective: dict[str, Any],
) -> Figures:
    """The probes' figures of all ranks as the record has them, and what follows from them."""
    figures = Figures()
    merged = _merged(ranks, figures)
    for name in (*probes.MEMORY, "flops_per_image", *probes.UNDERFLOW, "ceiling_tflops",
                 "ceiling_gb_per_s"):  # fmt: skip
        if merged.get(name) is not None:
            figures.metrics[name] = merged[name]
    step_s = global_batch / images_per_s if images_per_s else None
    _work(figures, images_per_s, replicas)
    _shares(figures, merged, step_s, wait_frac, effective.get("parallel") == "ddp")
    shares = {name: figures.metrics[f"share_{name}"] for name in diagnose.SHARES}
    why = next((r for r, names in figures.reasons.items() if "share_compute" in names), "")
    found = diagnose.diagnose(
        shares,
        mfu=figures.metrics["mfu"],
        reason=why,
        **diagnose.figures(effective),
    )
    figures.metrics["diagnosis"] = found.word
    figures.metrics["diagnosis_evidence"] = found.evidence
    return figures


# What each rank's figure of that name becomes; the others are lists, one item a device.
_MERGE: dict[str, Callable[[Sequence[float]], float]] = {
    "communication_s": max,
    **dict.fromkeys(probes.BUSY, statistics.fmean),
    "busy_window_s": statistics.fmean,
    **dict.fromkeys(probes.UNDERFLOW, statistics.fmean),
    "flops_per_image": statistics.fmean,
    "ceiling_tflops": min,
    "ceiling_gb_per_s": min,
}


def _merged(ranks: Sequence[Findings], figures: Figures) -> dict[str, Any]:
    names = dict.fromkeys(name for found in ranks for name in (*found.metrics, *found.reasons))
    merged: dict[str, Any] = {}
    for name in names:
        reason = next((found.reasons[name] for found in ranks if name in found.reasons), None)
        values = [value for r in ranks if (value := r.metrics.get(name)) is not None]
        if reason is not None or not values:
            figures.missing([name], reason or "not measured")
            if name not in PROBED:  # an ingredient: what it would have led to says why
                del figures.metrics[name]
        elif name in _MERGE:
            merged[name] = _MERGE[name](values)
        else:
            merged[name] = [item for value in values for item in value]
    return merged


def _work(figures: Figures, images_per_s: float | None, replicas: int) -> None:
    """Rates per device: the FLOPs are those of the network, not of what its kernels add."""
    flops, ceiling = figures.metrics.get("flops_per_image"), figures.metrics.get("ceiling_tflops")
    if flops is None or images_per_s is None:
        figures.missing(WORK, "needs flops_per_image and images_per_s")
        return
    achieved = figures.metrics["achieved_tflops"] = flops * images_per_s / replicas / 1e12
    if ceiling is None:
        figures.missing(("mfu",), "needs ceiling_tflops")
    elif achieved > ceiling:
        figures.missing(
            ("mfu",), "the training reached more than ceiling_tflops, measured on a busy device"
        )
    else:
        figures.metrics["mfu"] = achieved / ceiling


def _shares(
    figures: Figures,
    merged: dict[str, Any],
    step_s: float | None,
    wait_frac: float | None,
    ddp: bool,
) -> None:
    figures.metrics["share_input"] = wait_frac
    added = merged.get("communication_s")
    window_s = merged.get("busy_window_s")
    if window_s is not None:  # seen under the probes' own conditions, whatever they were
        step_s = (window_s + (added or 0.0)) / max(1e-9, 1.0 - min(0.99, wait_frac or 0.0))
    if added is not None and step_s is not None:
        figures.metrics["communication_frac"] = min(1.0, added / step_s)
    else:
        why = next((r for r, n in figures.reasons.items() if "communication_s" in n), None)
        figures.missing(("communication_frac",), why or "needs images_per_s")
    # ddp's exchange was left out of the busy window and measured by itself; dp's is in it.
    needed = (*probes.BUSY, "communication_s") if ddp else probes.BUSY
    missing = [name for name in needed if merged.get(name) is None]
    if wait_frac is None or step_s is None:
        figures.missing(SHARES, "needs data_wait_frac and images_per_s")
        return
    if missing:
        why = next((r for r, n in figures.reasons.items() if missing[0] in n), "not measured")
        figures.missing([name for name in SHARES if name != "share_input"], why)
        return
    communication_s = added if added is not None else merged["busy_communication_s"]
    found = diagnose.shares(
        step_s,
        wait_frac,
        compute_s=merged["busy_compute_s"],
        memory_s=merged["busy_memory_s"],
        communication_s=communication_s,
    )
    if found is None:
        figures.missing(
            [name for name in SHARES if name != "share_input"],
            "the probes saw more work in a step than a training step lasted: other conditions",
        )
        return
    for name, share in found.items():
        figures.metrics[f"share_{name}"] = share
