"""Other tools: Lightning and Accelerate, as usually written and with the same input as ours."""

import logging
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.contenders.resident import endless_batches
from benchmarks.contenders.work import LR, Absent, Work, synchronize, timed


def _lightning(work: Work, *, resident: bool, equal: bool) -> float:
    try:
        import lightning
    except ImportError as error:
        raise Absent("lightning is not installed") from error
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.backends.cudnn.benchmark = equal
    total = work.warm_up + work.steps
    marks: dict[int, float] = {}

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            network = work.network()
            if equal:
                network = network.to(memory_format=torch.channels_last)
            self.network: Any = torch.compile(network) if equal else network

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            return F.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=LR, fused=equal or None)

        def on_train_batch_start(self, batch: object, index: int) -> None:
            if index == work.warm_up:
                synchronize(work)
                marks[0] = time.perf_counter()

        def on_train_batch_end(self, outputs: object, batch: object, index: int) -> None:
            if index == total - 1:
                synchronize(work)
                marks[1] = time.perf_counter()

    class Stream(torch.utils.data.IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return endless_batches(work)

    if resident:
        loader: Any = torch.utils.data.DataLoader(Stream(), batch_size=None)
    else:
        loader = _image_loader(work)
    precision = {"fp32": "32-true", "bf16": "bf16-mixed"}.get(work.precision, "16-mixed")
    if work.device == "cpu" and precision == "16-mixed":
        precision = "bf16-mixed"
    trainer = lightning.Trainer(
        accelerator="gpu" if work.device == "cuda" else "cpu",
        devices=1,
        max_steps=total,
        precision=precision,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader)
    return work.steps * work.batch / (marks[1] - marks[0])


def _image_loader(work: Work) -> Any:
    """A DataLoader over JPEG files as Lightning's examples have it."""
    from torchvision import datasets, transforms

    if work.images is None:
        raise Absent("needs a folder of images")
    transform = transforms.Compose(
        [transforms.Resize((work.image_size, work.image_size)), transforms.ToTensor()]
    )
    return torch.utils.data.DataLoader(
        datasets.ImageFolder(work.images, transform),
        work.batch,
        shuffle=True,
        num_workers=work.workers,
        pin_memory=work.device == "cuda",
        drop_last=True,
        persistent_workers=work.workers > 0,
    )


def lightning_workers(work: Work) -> float:
    """Lightning as usually written, fed by loader processes."""
    return _lightning(work, resident=False, equal=False)


def lightning_resident(work: Work) -> float:
    """Lightning as usually written, given the resident input."""
    return _lightning(work, resident=True, equal=False)


def lightning_equal(work: Work) -> float:
    """Lightning with the resident input, channels last, fused AdamW and torch.compile."""
    return _lightning(work, resident=True, equal=True)


def _accelerate(work: Work, *, equal: bool) -> float:
    try:
        from accelerate import Accelerator
    except ImportError as error:
        raise Absent("accelerate is not installed") from error
    torch.backends.cudnn.benchmark = equal
    half = "bf16" if work.precision == "bf16" or work.device == "cpu" else "fp16"
    accelerator = Accelerator(
        mixed_precision="no" if work.precision == "fp32" else half, cpu=work.device == "cpu"
    )
    network = work.network()
    if equal:
        network = network.to(memory_format=torch.channels_last)
    optimizer: Any = torch.optim.AdamW(network.parameters(), lr=LR, fused=equal or None)
    model, optimizer = accelerator.prepare(network, optimizer)
    if equal:
        model = torch.compile(model)
    batches = endless_batches(work)

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = F.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()

    return timed(work, step)


def accelerate_resident(work: Work) -> float:
    """Accelerate as usually written, given the resident input."""
    return _accelerate(work, equal=False)


def accelerate_equal(work: Work) -> float:
    """Accelerate with the resident input, channels last, fused AdamW and torch.compile."""
    return _accelerate(work, equal=True)
