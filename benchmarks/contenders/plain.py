"""Loops of plain PyTorch, from the step alone to the best that a person writes by hand."""

import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from amp_sweep.precision import set_tf32
from benchmarks.contenders.resident import endless_batches, prepared, resident_images
from benchmarks.contenders.work import LR, Absent, Work, timed


def bare(work: Work) -> float:
    """The step alone, eager, over one batch that is there: no data, no loop."""
    torch.backends.cudnn.benchmark = True
    set_tf32(False)  # PyTorch's convolutions take it by default, which is another precision
    network = work.network().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR, fused=True)
    scaler = work.scaler()
    images, labels = next(endless_batches(work))

    def step() -> None:
        with work.autocast():
            loss = F.cross_entropy(network(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return timed(work, step)


def article(work: Work) -> float:
    """The article's loop, re-implemented here: PIL, one image after the other, in this process."""
    if work.images is None:
        raise Absent("needs a folder of images")
    files = sorted(Path(work.images).glob("*/*.jpg"))
    random.Random(0).shuffle(files)
    classes = {name: index for index, name in enumerate(sorted({f.parent.name for f in files}))}

    def load(path: Path) -> Tensor:
        with Image.open(path) as image:
            size = (work.image_size, work.image_size)
            pixels = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255

    network = work.network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR)
    scaler = work.scaler()
    at = 0

    def step() -> None:
        nonlocal at
        chosen = [files[(at + i) % len(files)] for i in range(work.batch)]
        at += work.batch
        images = torch.stack([load(path) for path in chosen]).to(work.device)
        labels = torch.tensor([classes[path.parent.name] for path in chosen]).to(work.device)
        optimizer.zero_grad()
        with work.autocast():
            loss = F.cross_entropy(network(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        loss.item()  # for the curve, and again for the mean
        loss.item()

    return timed(work, step)


def tuned(work: Work) -> float:
    """What a good engineer writes today: resident data, compiled forward, one CUDA graph."""
    if work.device != "cuda":
        raise Absent("CUDA graphs need a GPU")
    torch.backends.cudnn.benchmark = True
    set_tf32(False)
    network = work.network().to(memory_format=torch.channels_last)
    lr = torch.tensor(LR, device=work.device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=lr, fused=True, capturable=True)
    scaler = work.scaler()
    images, labels = resident_images(work)
    order = torch.randperm(len(images), device=work.device)
    place = torch.zeros((), dtype=torch.int64, device=work.device)
    within = torch.arange(work.batch, device=work.device)

    @torch.compile
    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with work.autocast():
            return F.cross_entropy(network(inputs), targets)

    def step() -> None:
        rows = order.index_select(0, (place + within) % len(order))
        loss = loss_of(prepared(work, images.index_select(0, rows)), labels.index_select(0, rows))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        place.add_(work.batch)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return timed(work, graph.replay)
