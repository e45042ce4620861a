"""Our cells, through the command line."""

import math
import statistics
import subprocess
import sys
import time
from pathlib import Path

from amp_sweep import record
from benchmarks.cpu_cells.work import PARALLELS, PRECISIONS, Work
from benchmarks.shared.children import environment


def run_ours(work: Work, folder: Path) -> tuple[list[float], str]:
    """Seconds of each epoch's training by `python -m amp_sweep.train`, and the memory format."""
    subprocess.run(
        [
            *(sys.executable, "-m", "amp_sweep.train", f"parallel={work.parallel}"),
            *(f"precision={work.precision}", f"epochs={work.epochs}", "force=true"),
            *(f"outputs={folder}", "name=cell", "measure.probes=false"),
            f"data.train_images={'null' if work.train_images is None else work.train_images}",
            f"memory.format={'channels_last' if work.channels_last else 'contiguous'}",
        ],
        cwd=folder,
        env=environment(CUDA_VISIBLE_DEVICES=""),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    found = [
        run
        for run in map(record.read, record.find(folder / "cell"))
        if (run.cell["parallel"], run.cell["precision"]) == (work.parallel, work.precision)
    ]
    epochs = [epoch["train_time_s"] for epoch in found[0].epochs]
    return epochs, str(found[0].effective["memory_format"])


def whole_matrix(folder: Path, evaluate_ms: dict[tuple[str, str], float]) -> dict[str, float]:
    """The bare matrix by one command: seconds in all, and beside the work of its cells.

    Beyond is what the second and later cells take from the end of the one before them to their
    own, without their training and evaluation.
    """
    began = time.time()
    subprocess.run(
        [
            *(sys.executable, "-m", "amp_sweep.train", "-m", f"outputs={folder}", "name=matrix"),
            *(f"parallel={','.join(PARALLELS)}", f"precision={','.join(PRECISIONS)}"),
        ],
        cwd=folder,
        env=environment(CUDA_VISIBLE_DEVICES=""),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    total = time.time() - began
    files = sorted(record.find(folder / "matrix"), key=lambda path: path.stat().st_mtime)
    ends = [path.stat().st_mtime for path in files]
    runs = [record.read(path) for path in files]
    beyond = []
    for before, end, run in zip(ends, ends[1:], runs[1:], strict=False):
        at = (run.cell["parallel"], run.cell["precision"])
        evaluation_s = len(run.epochs) * evaluate_ms.get(at, math.nan) / 1e3
        beyond.append(end - before - run.metrics["train_time_s"] - evaluation_s)
    return {
        "total_s": total,
        "train_s": math.fsum(run.metrics["train_time_s"] for run in runs),
        "beyond_mean_s": statistics.fmean(beyond),
        "beyond_max_s": max(beyond),
    }
