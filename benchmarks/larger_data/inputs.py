"""Input alone, in a process of its own: `python -m benchmarks.larger_data.inputs ROW JSON`.

Prints what it reached as JSON. JSON gives the fields of `Work`.
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.larger_data.work import Work

SETTLE_S = 1.5  # after the first batch, and some batches; no longer than is timed
# More images a second than any row brings: how many are planned for.
AT_MOST = 40_000


def plain(work: Work, uint8: bool) -> Iterator[int]:
    """A DataLoader as people write it; the size of each batch once it is sent to the device."""
    from torch.utils.data import DataLoader, RandomSampler
    from torchvision import datasets, transforms

    side = work.image_size
    steps: list[Callable[..., Any]] = [
        transforms.Resize((side, side)),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    if uint8:
        steps = [transforms.CenterCrop(side), transforms.PILToTensor()]
    data = datasets.ImageFolder(f"{work.root}/train", transforms.Compose(steps))
    cuda = work.device == "cuda"
    loader = DataLoader(
        data,
        work.batch,
        # Epoch after epoch without a pause between them.
        sampler=RandomSampler(data, num_samples=_planned(work)),
        num_workers=work.workers,
        pin_memory=cuda,
        drop_last=True,
    )
    for images, labels in loader:
        images = images.to(work.device, non_blocking=cuda)
        labels.to(work.device, non_blocking=cuda)
        yield len(images)


def ours(work: Work, decode: str) -> Iterator[int]:
    """The input of our cells; the size of each batch once it is what the network sees."""
    import torch

    from amp_sweep import data
    from amp_sweep.config import DataConfig

    config = DataConfig(
        name="imagefolder",
        root=work.root,
        image_size=work.image_size,
        pipeline="loader",
        workers=work.workers,
        decode=decode,
    )
    device = torch.device(work.device, 0) if work.device == "cuda" else torch.device("cpu")
    prepared = data.prepare(config)
    split = data.open_split(prepared, "train", config, device, channels_last=True)
    epochs = range(math.ceil(_planned(work) / split.count))
    order = torch.cat([data.epoch_order(split.count, 0, epoch, True) for epoch in epochs])
    for raw in split.batches(data.rank_batches(order, work.batch, 0, 1)):
        images, _ = split.to_input(raw)
        yield len(images)


def _planned(work: Work) -> int:
    return int(max(2 * work.images, AT_MOST * (work.seconds + 3 * SETTLE_S)))


INPUTS: dict[str, Callable[[Work], Iterator[int]]] = {
    "plain": lambda work: plain(work, uint8=False),
    "plain_uint8": lambda work: plain(work, uint8=True),
    "ours": lambda work: ours(work, "host"),
    "ours_decode": lambda work: ours(work, "device"),
}


def timed(work: Work, batches: Iterator[int]) -> dict[str, Any]:
    """Images a second of `batches`, once their makers are at work."""
    import torch

    def reached() -> float:
        if work.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    started = time.perf_counter()
    next(batches)
    first_s = reached() - started
    settled = started + first_s + min(SETTLE_S, work.seconds)
    for skipped, _ in enumerate(batches, start=1):
        if skipped >= 2 * work.workers + 4 and time.perf_counter() > settled:
            break
    began, images, count = reached(), 0, 0
    for size in batches:
        images, count = images + size, count + 1
        if time.perf_counter() - began > work.seconds:
            break
    took = reached() - began
    found: dict[str, Any] = {
        "images_per_s": images / took,
        "batches": count,
        "first_batch_s": first_s,
    }
    if work.device == "cuda":
        found["gpu_mib"] = torch.cuda.max_memory_reserved() / 2**20
    return found


def input_row(name: str, work: Work) -> dict[str, Any]:
    """The result of a row of input alone, in this process."""
    from amp_sweep.data import DataError

    try:
        return timed(work, INPUTS[name](work))
    except DataError as error:
        return {"absent": str(error)}


if __name__ == "__main__":
    print(json.dumps(input_row(sys.argv[1], Work(**json.loads(sys.argv[2])))))
