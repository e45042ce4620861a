"""Figures that a training step must not pay for: taken after the last checkpoint.

No probe steps the optimizer; each restores or drops what it touched. One that fails costs its own
figures, never the cell.
"""

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from amp_sweep import ceilings, generators
from amp_sweep.data import Raw, Split
from amp_sweep.engine import Trainer
from amp_sweep.parallel import Ranks
from amp_sweep.precision import ClassifierLoss, make_scaler
from amp_sweep.probes import busy, communication, flops, memory_use, underflow

log = logging.getLogger(__name__)

# What the probes may take of a run, if that exceeds what they may always take.
SHARE_OF_TRAINING = 0.05

MEMORY = tuple(
    f"memory_{name}_mib"
    for name in (
        *("parameters", "gradients", "optimizer", "activations", "input", "workspace"),
        *("unattributed", "probe_peak", "activations_saved", "input_resident", "rounding"),
    )
)
UNDERFLOW = ("underflow_frac", "underflow_frac_unscaled", "underflow_frac_scaled",
             "underflow_scale")  # fmt: skip
BUSY = ("busy_compute_s", "busy_memory_s", "busy_communication_s")

# Passes forward and backward that a probe takes, the reference in float32 among them.
UNDERFLOW_BATCHES = {"cuda": 3, "cpu": 1}
COMMUNICATION_STEPS = {"cuda": 10, "cpu": 1}


@dataclass(frozen=True)
class Subject:
    """A cell after its last checkpoint, as the probes see it; the same on every rank."""

    trainer: Trainer
    loss: ClassifierLoss  # not wrapped
    split: Split
    stored: list[Tensor]  # data that lie on the devices for good
    indices: Tensor  # [steps, batch] of this rank
    devices: list[torch.device]
    ranks: Ranks
    step_s: float | None  # mean seconds of a training step
    train_s: float
    allowed_s: float  # what the probes may always take; on CUDA they are not limited
    autocast_dtype: torch.dtype | None
    tf32: bool
    init_scale: float
    device_name: str
    driver: str | None
    cache: Path  # folder for what is measured once
    plain_network: Callable[[], nn.Module]  # as it is defined, on the meta device where it can be
    image_size: int
    eager: bool = True  # whether the step runs operation by operation


@dataclass
class Findings:
    """Figures by name, and for those that are None the reason."""

    metrics: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def missing(self, names: tuple[str, ...], reason: str) -> None:
        """These figures could not be had."""
        self.metrics.update(dict.fromkeys(names))
        self.reasons.update(dict.fromkeys(names, reason))


def run_probes(subject: Subject, alive: Callable[[str], None] = lambda _what: None) -> Findings:
    """All probes, in an order and with conditions that every rank shares. Never raises.

    `alive(what)` is called before each.
    """
    found = Findings()
    left_s = max(subject.allowed_s, SHARE_OF_TRAINING * subject.train_s)
    needed = {
        "communication": subject.ranks.world_size > 1,
        "underflow": subject.autocast_dtype is not None,
    }
    kind = subject.devices[0].type
    if kind not in ("cuda", "cpu"):
        for _, names, _, _ in _PROBES:
            found.missing(names, f"not measured on {kind}")
        return found
    for name, names, steps, probe in _PROBES:
        alive(f"probe {name}")
        # From what every rank knows alike: some probes need all of them.
        cost_s = (subject.step_s or 0.0) * steps if needed.get(name, True) else 0.0
        if kind == "cpu" and cost_s > left_s:
            found.missing(
                names,
                f"left out: it would take {cost_s:.1f} s, and {left_s:.1f} s are left of what all "
                "probes may take (measure.probes_s)",
            )
            continue
        left_s -= cost_s
        started = time.perf_counter()
        try:
            with _unchanged(subject):
                probe(subject, found)
        # A person's own network may raise anything; a rank has no Ctrl-C of its own.
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            log.warning("probe %s failed", name, exc_info=True)
            text = str(error).strip().splitlines() or [""]
            found.missing(names, f"the {name} probe failed: {type(error).__name__}: {text[0]}")
        log.info("probe %s: %.3f s", name, time.perf_counter() - started)
    return found


@contextlib.contextmanager
def _unchanged(subject: Subject) -> Iterator[None]:
    """Random numbers go on as if nothing had been, and no gradient is left."""
    with generators.unchanged(subject.devices):
        try:
            yield
        finally:
            communication.drop(subject.loss)


def _batch(subject: Subject, row: int = 0) -> tuple[Tensor, Tensor]:
    (batch,) = [
        subject.split.to_input(raw) for raw in subject.split.batches(subject.indices[row : row + 1])
    ]
    return batch


@contextlib.contextmanager
def _without_exchange(subject: Subject) -> Iterator[None]:
    """Ranks do not wait for one another: a probe that fails on one stops none."""
    wrapped = subject.trainer.loss
    if not isinstance(wrapped, DistributedDataParallel):
        yield
        return
    # Buffers (batch norm's) are sent before the next forward pass, unless this says otherwise.
    before = wrapped.require_forward_param_sync
    with wrapped.no_sync():
        wrapped.require_forward_param_sync = False
        try:
            yield
        finally:
            wrapped.require_forward_param_sync = before


def _memory(subject: Subject, found: Findings) -> None:
    trainer = subject.trainer
    trainer.loss.train()
    step = memory_use.Step(
        batch=lambda: _batch(subject),
        forward=lambda images, labels: trainer.loss(images, labels).mean(),
        backward=lambda loss: trainer.scaler.scale(loss).backward(),  # type: ignore[no-untyped-call]
    )

    def measure(buckets: list[Tensor]) -> list[memory_use.MemoryUse]:
        state = [*trainer.optimizer.state.values()]
        return memory_use.measure(
            subject.loss.network,
            step,
            subject.devices,
            state,
            subject.stored,
            eager=subject.eager,
            buckets=buckets,
        )

    buckets = []
    if isinstance(trainer.loss, DistributedDataParallel):
        # The exchange belongs to the step: gradients are views into its buckets.
        _rehearse(subject, lambda: measure([]))
        step.backward(step.forward(*step.batch()))
        buckets = [p.grad for p in subject.loss.parameters() if p.grad is not None]
        communication.drop(subject.loss)
    found.metrics.update(memory_use.metrics(measure(buckets)))


def _rehearse(subject: Subject, probe: Callable[[], object]) -> None:
    """Try a probe that exchanges gradients without the exchange: raises on all ranks or on none.

    A rank that failed in the exchange would leave the others waiting.
    """
    problem = None
    try:
        with _without_exchange(subject):
            probe()
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the others must hear of it
        problem = error
    failed = subject.ranks.gather(problem is not None)
    communication.drop(subject.loss)
    if problem is not None:
        raise problem
    if any(failed):
        raise RuntimeError(f"it failed on rank {failed.index(True)}")


def _flops(subject: Subject, found: Findings) -> None:
    network = subject.plain_network()
    _, found.metrics["flops_per_image"] = flops.per_image(network, subject.image_size)


def _underflow(subject: Subject, found: Findings) -> None:
    if subject.autocast_dtype is None:
        found.missing(UNDERFLOW, "nothing is computed in half precision")
        return
    batches = min(UNDERFLOW_BATCHES[subject.devices[0].type], len(subject.indices))
    scaler = subject.trainer.scaler
    scale = scaler.get_scale() if scaler.is_enabled() else subject.init_scale
    rows = [_batch(subject, row) for row in range(batches)]
    with torch.compiler.set_stance("force_eager"):
        seen = underflow.measure(subject.loss, rows, scale)
    found.metrics["underflow_frac"] = seen.scaled if scaler.is_enabled() else seen.unscaled
    found.metrics["underflow_frac_unscaled"] = seen.unscaled
    found.metrics["underflow_frac_scaled"] = seen.scaled
    found.metrics["underflow_scale"] = seen.scale


def _communication(subject: Subject, found: Findings) -> None:
    wrapped = subject.trainer.loss
    if not isinstance(wrapped, DistributedDataParallel) or subject.ranks.world_size == 1:
        found.metrics["communication_s"] = 0.0
        if len(subject.devices) > 1:
            found.missing(("communication_s",), "dp copies within its own process")
        return
    if subject.trainer.graph is not None:
        # Launched one by one, the kernels wait for the host, and the exchange hides behind that.
        found.missing(
            ("communication_s",), "the step is a CUDA graph, in which it can't be left out"
        )
        return
    images, labels = _batch(subject)
    wrapped.train()  # type: ignore[no-untyped-call]
    _rehearse(subject, lambda: wrapped(images, labels).mean().backward())
    found.metrics["communication_s"] = communication.added_s(
        wrapped,
        lambda: wrapped(images, labels).mean(),
        subject.devices,
        lambda: subject.ranks.gather(None),
        steps=COMMUNICATION_STEPS[subject.devices[0].type],
    )


def _busy(subject: Subject, found: Findings) -> None:
    """A whole step, the update included: on copies of the weights and of the optimizer's state."""
    trainer = subject.trainer
    optimizer = _twin(trainer.optimizer)
    copies = [weight for group in optimizer.param_groups for weight in group["params"]]
    originals = [weight for group in trainer.optimizer.param_groups for weight in group["params"]]
    scaler = make_scaler(
        trainer.scaler.is_enabled(),
        subject.devices[0].type,
        trainer.scaler.get_scale(),
        2**31 - 1,
    )
    trainer.loss.train()

    def fetch() -> Raw:
        (raw,) = subject.split.batches(subject.indices[:1])
        return raw

    def step(raw: Raw) -> None:
        images, labels = subject.split.to_input(raw)
        loss = trainer.loss(images, labels).mean()
        scaler.scale(loss).backward()
        for weight, original in zip(copies, originals, strict=True):
            weight.grad = original.grad
        if trainer.clip_norm is not None:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(copies, trainer.clip_norm)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        trainer.optimizer.zero_grad(set_to_none=True)

    with _without_exchange(subject):
        seen = busy.measure(fetch, step, subject.devices)
    found.metrics["busy_compute_s"] = seen.compute_s
    found.metrics["busy_memory_s"] = seen.memory_s
    found.metrics["busy_communication_s"] = seen.communication_s
    if seen.window_s is not None:
        found.metrics["busy_window_s"] = seen.window_s


def _twin(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """A copy with parameters and state of its own.

    Everything is copied, since a copy by way of PyTorch's own state forgets what a subclass has
    added; but for `step`, which a scheduler has bound to the original.
    """
    twin: torch.optim.Optimizer = object.__new__(type(optimizer))
    vars(twin).update(
        copy.deepcopy({name: value for name, value in vars(optimizer).items() if name != "step"})
    )
    return twin


def _ceilings(subject: Subject, found: Findings) -> None:
    if subject.ranks.rank == 0:  # alone: the others would compete for the same cores
        number_format = ceilings.format_of(subject.autocast_dtype, subject.tf32)
        images = subject.indices.shape[1] / len(subject.devices)  # of a device and step
        flops_per_image = found.metrics.get("flops_per_image")
        rate = images / subject.step_s if subject.step_s else 0.0
        best = ceilings.measured(
            subject.devices[0],
            number_format,
            subject.cache,
            device_name=subject.device_name,
            driver=subject.driver,
            reached_tflops=(flops_per_image or 0.0) * rate / 1e12,
        )
        found.metrics["ceiling_tflops"] = best.tflops
        found.metrics["ceiling_gb_per_s"] = best.gb_per_s


# Name, figures, how many training steps it takes about as long as, and how it is done.
_PROBES: tuple[tuple[str, tuple[str, ...], int, Callable[[Subject, Findings], None]], ...] = (
    ("memory", MEMORY, 2, _memory),
    ("FLOPs", ("flops_per_image",), 1, _flops),
    ("communication", ("communication_s",), 8, _communication),
    ("busy", BUSY, 4, _busy),
    ("underflow", UNDERFLOW, 4, _underflow),
    ("ceilings", ("ceiling_tflops", "ceiling_gb_per_s"), 0, _ceilings),
)
