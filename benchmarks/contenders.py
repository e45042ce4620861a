"""One contender a process: `python -m benchmarks.contenders NAME JSON` prints its images/s as JSON.

Each trains AlexNet on images of 32 px, resized to `image_size`, with AdamW and cross-entropy, and
is timed over `steps` steps after `warm_up`; what it does besides differs, and is the point.
"""

import contextlib
import json
import logging
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from amp_sweep import record
from amp_sweep.models import AlexNet
from amp_sweep.precision import set_tf32

CLASSES = 10
SOURCE_SIZE = 32
LR = 1e-4


class Absent(Exception):
    """The contender cannot run here; the message says why."""


@dataclass(frozen=True)
class Work:
    """What every contender does."""

    precision: str = "scaler"  # fp32, autocast, scaler, bf16
    batch: int = 64
    steps: int = 200
    warm_up: int = 20
    image_size: int = 227
    width: float = 1.0  # of AlexNet's layers
    device: str = "cuda"
    workers: int = 0
    images: str | None = None  # folder of class folders of JPEG files
    gpus: int = 1

    @property
    def dtype(self) -> torch.dtype | None:
        """What autocast computes in."""
        if self.precision == "fp32":
            return None
        half = self.precision in ("autocast", "scaler") and self.device == "cuda"
        return torch.float16 if half else torch.bfloat16

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """The precision's context."""
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device, dtype=self.dtype)

    def scaler(self) -> torch.amp.GradScaler:
        """The precision's scaler; it does nothing where there is none."""
        return torch.amp.GradScaler(self.device, enabled=self.precision == "scaler")

    def network(self) -> nn.Module:
        """A new AlexNet on the device."""
        torch.manual_seed(0)
        return AlexNet(CLASSES, self.width).to(self.device)


# ------------------------------------------------------------------ timing and data


def _synchronize(work: Work) -> None:
    if work.device == "cuda":
        torch.cuda.synchronize()


def _timed(work: Work, step: Callable[[], object]) -> float:
    """Images per second of `step`, called as often as asked for."""
    for _ in range(work.warm_up):
        step()
    _synchronize(work)
    started = time.perf_counter()
    for _ in range(work.steps):
        step()
    _synchronize(work)
    return work.steps * work.batch / (time.perf_counter() - started)


def _resident(work: Work) -> tuple[Tensor, Tensor]:
    """Images [N, 3, 32, 32] uint8 and labels [N], made up, on the device."""
    generator = torch.Generator().manual_seed(0)
    count = max(work.batch, 51200 if work.device == "cuda" else 512)
    shape = (count, 3, SOURCE_SIZE, SOURCE_SIZE)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, CLASSES, (count,), generator=generator)
    return images.to(work.device), labels.to(work.device)


def _prepared(work: Work, pixels: Tensor) -> Tensor:
    resized = F.interpolate(
        pixels.float().div_(127.5).sub_(1),
        size=(work.image_size, work.image_size),
        mode="bilinear",
        align_corners=False,
    )
    return resized.contiguous(memory_format=torch.channels_last)


def _batches(work: Work) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches drawn from resident images, without end."""
    images, labels = _resident(work)
    order = torch.randperm(len(images), device=images.device)
    at = 0
    while True:
        if at + work.batch > len(order):
            at = 0
        rows = order[at : at + work.batch]
        at += work.batch
        yield _prepared(work, images[rows]), labels[rows]


# ------------------------------------------------------------------ contenders


def bare(work: Work) -> float:
    """The step alone, eager, over one batch that is there: no data, no loop."""
    torch.backends.cudnn.benchmark = True
    set_tf32(False)  # PyTorch's convolutions take it by default, which is another precision
    network = work.network().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR, fused=True)
    scaler = work.scaler()
    images, labels = next(_batches(work))

    def step() -> None:
        with work.autocast():
            loss = F.cross_entropy(network(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return _timed(work, step)


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

    return _timed(work, step)


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
    images, labels = _resident(work)
    order = torch.randperm(len(images), device=work.device)
    place = torch.zeros((), dtype=torch.int64, device=work.device)
    within = torch.arange(work.batch, device=work.device)

    @torch.compile
    def loss_of(inputs: Tensor, targets: Tensor) -> Tensor:
        with work.autocast():
            return F.cross_entropy(network(inputs), targets)

    def step() -> None:
        rows = order.index_select(0, (place + within) % len(order))
        loss = loss_of(_prepared(work, images.index_select(0, rows)), labels.index_select(0, rows))
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
    return _timed(work, graph.replay)


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
                _synchronize(work)
                marks[0] = time.perf_counter()

        def on_train_batch_end(self, outputs: object, batch: object, index: int) -> None:
            if index == total - 1:
                _synchronize(work)
                marks[1] = time.perf_counter()

    class Stream(torch.utils.data.IterableDataset[tuple[Tensor, Tensor]]):
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            return _batches(work)

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
    batches = _batches(work)

    def step() -> None:
        images, labels = next(batches)
        optimizer.zero_grad()
        with accelerator.autocast():
            loss = F.cross_entropy(model(images), labels)
        accelerator.backward(loss)
        optimizer.step()

    return _timed(work, step)


def accelerate_resident(work: Work) -> float:
    """Accelerate as usually written, given the resident input."""
    return _accelerate(work, equal=False)


def accelerate_equal(work: Work) -> float:
    """Accelerate with the resident input, channels last, fused AdamW and torch.compile."""
    return _accelerate(work, equal=True)


def _ours(work: Work, *overrides: str) -> float:
    """A cell through the command line, on made-up images; from its record."""
    images = (work.warm_up + work.steps) * work.batch * work.gpus
    arguments = [
        "name=benchmark",
        f"precision={work.precision}",
        f"device={work.device}",
        "model=alexnet_article",
        f"model.width={work.width}",
        f"model.outputs={CLASSES}",
        "data=synthetic",
        f"data.classes={CLASSES}",
        f"data.source_size={SOURCE_SIZE}",
        f"data.image_size={work.image_size}",
        f"data.batch_size={work.batch}",
        f"data.train_images={images}",
        f"data.test_images={work.batch}",
        "epochs=2",
        "optimizer=adamw_article",
        "scheduler=constant",
        "track=none",
        "measure.probes=false",
        *overrides,
    ]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "amp_sweep.train", f"outputs={folder}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        paths = record.find(Path(folder) / "benchmark")
        if not paths:
            raise RuntimeError(done.stderr[-2000:])
        found = record.read(paths[0])
    if found.status != record.COMPLETED:
        raise RuntimeError(f"{found.status}: {found.error or found.notes}")
    return float(found.metrics["images_per_s"])


def ours(work: Work) -> float:
    """This project's default cell: eager."""
    return _ours(work)


def ours_fast(work: Work) -> float:
    """This project's fastest mode: memory=fast."""
    return _ours(work, "memory=fast")


def _ours_ddp(work: Work, *overrides: str) -> float:
    return _ours(
        work, "parallel=ddp", f"parallel.devices={work.gpus}", "data.batch_mode=per_device",
        *overrides,
    )  # fmt: skip


def ours_ddp(work: Work) -> float:
    """The default cell under ddp, with the batch on each device."""
    return _ours_ddp(work)


def ours_ddp_fast(work: Work) -> float:
    """The fastest mode under ddp, with the batch on each device."""
    return _ours_ddp(work, "memory=fast")


def ours_dp(work: Work) -> float:
    """The default cell under dp, the batch divided between the devices."""
    return _ours(work, "parallel=dp", f"parallel.devices={work.gpus}")


def ours_dp_fast(work: Work) -> float:
    """The fastest mode under dp, the batch divided between the devices."""
    return _ours(work, "parallel=dp", f"parallel.devices={work.gpus}", "memory=fast")


CONTENDERS: dict[str, Callable[[Work], float]] = {
    function.__name__: function
    for function in (
        bare, tuned, article, lightning_workers, lightning_resident, lightning_equal,
        accelerate_resident, accelerate_equal, ours, ours_fast, ours_ddp, ours_ddp_fast, ours_dp,
        ours_dp_fast,
    )
}  # fmt: skip


def main() -> None:
    """Run one contender and print what it reached, as JSON."""
    name, work = sys.argv[1], Work(**json.loads(sys.argv[2]))
    warnings.simplefilter("ignore")  # the peers' own
    try:
        found: dict[str, Any] = {"images_per_s": CONTENDERS[name](work)}
    except Absent as error:
        found = {"absent": str(error)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
