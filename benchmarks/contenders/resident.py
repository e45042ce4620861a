"""Made-up images that lie on the device, and batches of them."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.contenders.work import CLASSES, SOURCE_SIZE, Work


def resident_images(work: Work) -> tuple[Tensor, Tensor]:
    """Images [N, 3, 32, 32] uint8 and labels [N], made up, on the device."""
    generator = torch.Generator().manual_seed(0)
    count = max(work.batch, 51200 if work.device == "cuda" else 512)
    shape = (count, 3, SOURCE_SIZE, SOURCE_SIZE)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return images.to(work.device), labels.to(work.device)


def prepared(work: Work, pixels: Tensor) -> Tensor:
    """Pixels [B, 3, 32, 32] as what the network sees: -1..1, resized, channels last."""
    resized = F.interpolate(
        pixels.float().div_(127.5).sub_(1),
        size=(work.image_size, work.image_size),
        mode="bilinear",
        align_corners=False,
    )
    return resized.contiguous(memory_format=torch.channels_last)


def endless_batches(work: Work) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches drawn from resident images, without end."""
    images, labels = resident_images(work)
    order = torch.randperm(len(images), device=images.device)
    at = 0
    while True:
        if at + work.batch > len(order):
            at = 0
        rows = order[at : at + work.batch]
        at += work.batch
        yield prepared(work, images[rows]), labels[rows]
