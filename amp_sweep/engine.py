"""One training step and one evaluation for all cells."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from amp_sweep.data import Raw, Split
from amp_sweep.graph import StepGraph
from amp_sweep.measure import StepClock, StepTimes, synchronize
from amp_sweep.precision import ClassifierLoss


@dataclass
class Trainer:
    """What a step needs: the wrapped loss, its optimizer and its scaler."""

    loss: nn.Module  # (images, labels) -> mean loss per replica
    parameters: list[nn.Parameter]
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    clip_norm: float | None
    graph: StepGraph | None = None  # where the whole step is a CUDA graph
    # What the scaler scales to tell its scale: a graph may read only what outlives it.
    one: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.one = torch.ones(1, device=self.parameters[0].device)


@dataclass
class EpochSteps:
    """What some steps of an epoch left on the device, a value a step, and how long they took."""

    losses: Tensor  # [steps done] float32; this rank's share of each batch
    scales: Tensor  # [steps done] float32, after the step's update; 1 without a scaler
    time_s: float
    times: StepTimes
    first_step_s: float | None = None  # only where it was asked for


class _Values:
    """One value [1] a step, kept on the device at no kernel a step.

    Each takes a block of the allocator; joined now and then, an epoch's take next to nothing.
    """

    _TOGETHER = 256

    def __init__(self, device: torch.device) -> None:
        self._joined = [torch.empty(0, device=device)]
        self._values: list[Tensor] = []

    def add(self, value: Tensor) -> None:
        self._values.append(value)
        if len(self._values) == self._TOGETHER:
            self._joined.append(torch.cat(self._values))
            self._values.clear()

    def joined(self) -> Tensor:
        """All of them [steps], float32."""
        return torch.cat([*self._joined, *self._values]).float()


class _KernelByKernel:
    """Repeats a step over batches, launched anew each time: what a `StepGraph` does in one call."""

    def __init__(self, split: Split, clock: StepClock, device: torch.device) -> None:
        self._split = split
        self._clock = clock
        self._losses, self._scales = _Values(device), _Values(device)
        self._batches: Iterator[Raw] = iter(())

    def load(self, indices: Tensor) -> None:
        """Begin with the first row of `indices` [steps, b], on the CPU."""
        self._batches = self._split.batches(indices)

    def run(self, step: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]) -> None:
        """The next row's step, with the row's images where they had to be fetched."""
        raw = next(self._batches)
        self._clock.batch_there()
        loss, scale = step(raw.indices, raw.images)
        self._losses.add(loss)
        if scale is not None:
            self._scales.add(scale)

    def results(self, _steps: int) -> tuple[Tensor, Tensor]:
        """Losses and scales since `load`, both [steps]."""
        losses, scales = self._losses.joined(), self._scales.joined()
        return losses, scales if len(scales) else torch.ones_like(losses)


def train_step(trainer: Trainer, images: Tensor, labels: Tensor) -> Tensor:
    """One update; the mean loss of the batch [1], still on the device."""
    loss: Tensor = trainer.loss(images, labels)
    if len(loss) > 1:  # a loss per replica
        loss = loss.mean(dim=0, keepdim=True)
    trainer.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
    if trainer.clip_norm is not None:
        trainer.scaler.unscale_(trainer.optimizer)
        nn.utils.clip_grad_norm_(trainer.parameters, trainer.clip_norm)
    trainer.scaler.step(trainer.optimizer)
    trainer.scaler.update()
    trainer.optimizer.zero_grad(set_to_none=True)
    return loss.detach()


def train_epoch(
    trainer: Trainer,
    split: Split,
    indices: Tensor,
    clock: StepClock,
    devices: list[torch.device],
    *,
    go_on: Callable[[int], bool] = lambda _step: True,
    time_first_step: bool = False,
) -> EpochSteps:
    """Train on the rows of `indices` [steps, batch], or on as many as `go_on` allows.

    `go_on(step)` is asked on the host before each step. Nothing is read back from the device
    before the end, except after the first step where its time is asked for.
    """
    steps = len(indices)
    enabled = trainer.scaler.is_enabled()
    stepper = trainer.graph or _KernelByKernel(split, clock, devices[0])
    trainer.loss.train()

    def step(indices: Tensor, raw: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        images, labels = split.to_input(Raw(indices, raw))
        if trainer.graph is None:  # nothing within a graph can be timed
            clock.input_ready()
        loss = train_step(trainer, images, labels)
        # The scale itself, without a read-back.
        return loss, trainer.scaler.scale(trainer.one) if enabled else None

    stepper.load(indices)
    synchronize(devices)
    first_step_s = None
    done = 0
    started = time.perf_counter()
    clock.start_epoch()
    while done < steps and go_on(done):
        stepper.run(step)
        clock.step_done()
        done += 1
        if time_first_step and done == 1:
            synchronize(devices)
            first_step_s = time.perf_counter() - started
    synchronize(devices)
    losses, scales = stepper.results(done)
    return EpochSteps(
        losses=losses,
        scales=scales,
        time_s=time.perf_counter() - started,
        times=clock.epoch_times(),
        first_step_s=first_step_s,
    )


@torch.no_grad()
def evaluate(
    module: ClassifierLoss,
    split: Split,
    batches: list[Tensor],
    device: torch.device,
    alive: Callable[[int], None] = lambda _batch: None,
) -> Tensor:
    """Correct answers, images and summed loss of the batches, as float64 [3] on the device.

    `module` is the unwrapped one: no collectives here. Sums of shards add up to the whole;
    counts are exact below 2**53. `alive(batch)` is called on the host before each batch. Nothing
    is compiled for it: it is outside the clock.
    """
    module.eval()
    # MPS has no float64; its sums stay exact below 2**24.
    kind = torch.float32 if device.type == "mps" else torch.float64
    totals = torch.zeros(3, dtype=kind, device=device)
    for batch, raw in enumerate(split.batches(batches)):
        alive(batch)
        images, labels = split.to_input(raw)
        with torch.compiler.set_stance("force_eager"):
            logits = module.logits(images)
        losses = nn.functional.cross_entropy(logits, labels, reduction="none")
        totals[0] += (logits.argmax(dim=1) == labels).sum()
        totals[1] += len(labels)
        totals[2] += losses.sum()
    return totals
