"""Our own cells, through the command line."""

import subprocess
import sys
import tempfile
from pathlib import Path

from amp_sweep import record
from benchmarks.contenders.work import CLASSES, SOURCE_SIZE, Work


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
