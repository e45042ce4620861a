"""The cells of the bare matrix on a CPU, each against a loop written by hand for the same work.

    python -m benchmarks.cpu_cells                      # all nine cells, five repeats
    python -m benchmarks.cpu_cells --matrix --out DIR   # and the whole bare matrix, once
    python -m benchmarks.cpu_cells --cells none,fp32 --epochs 2 --train-images 256 --repeats 1

The loop is what a person writes without this tool: scikit-learn's digits in memory, resized and
normalised per batch, AlexNet at a quarter of its width, fused AdamW, autocast and a scaler where
the cell has them, DistributedDataParallel over gloo where the cell has that. Each contender is a
fresh process; repeats are interleaved, ours and the loop's in turn. Compared are times of
training epochs, without the first, by the ratio of their medians in each repeat. The machine must
be quiet: the load is told.
"""

import argparse
import csv
import json
import math
import os
import platform
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from amp_sweep import record
from benchmarks.children import REPOSITORY, environment

PARALLELS = ("none", "dp", "ddp")
PRECISIONS = ("fp32", "autocast", "scaler")
CELLS = tuple((p, q) for p in PARALLELS for q in PRECISIONS)
BATCH, SIZE, LR, RANKS = 64, 64, 1e-3, 2


@dataclass(frozen=True)
class Work:
    """What both contenders do."""

    parallel: str
    precision: str
    epochs: int
    train_images: int | None
    channels_last: bool

    @property
    def world(self) -> int:
        """Processes."""
        return RANKS if self.parallel == "ddp" else 1


# ------------------------------------------------------------------ the loop written by hand


def hand_written(work: Work, rank: int, port: int) -> dict[str, list[float]]:
    """Train as one rank; seconds of each epoch's training, and of each evaluation."""
    import torch
    import torch.nn.functional as F
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from torch import nn

    from amp_sweep.models import AlexNet

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // work.world))
    torch.manual_seed(0)
    data = load_digits()
    pixels = torch.tensor(data.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.tensor(data.target, dtype=torch.int64)
    train, test = (
        torch.tensor(part)
        for part in train_test_split(
            range(len(labels)), test_size=360, random_state=0, stratify=data.target
        )
    )
    train = train[: work.train_images]
    known = pixels[train].float() / 255
    scale, bias = 1 / (255 * known.std()), -known.mean() / known.std()
    layout = torch.channels_last if work.channels_last else torch.contiguous_format

    network: nn.Module = AlexNet(10, 0.25).to(memory_format=layout)
    model = network
    if work.world > 1:
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=work.world
        )
        model = nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=LR, fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=work.precision == "scaler")
    half = work.precision != "fp32"

    def inputs(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        images = pixels[rows].float() * scale + bias
        images = F.interpolate(images, size=SIZE, mode="bilinear", antialias=True)
        return images.expand(-1, 3, -1, -1).contiguous(memory_format=layout), labels[rows]

    def train_epoch() -> float:
        model.train()
        order = train[torch.randperm(len(train))]
        began = time.perf_counter()
        for batch in torch.split(order, BATCH):
            if len(batch) < BATCH:
                break
            images, targets = inputs(batch[rank :: work.world])
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                loss = F.cross_entropy(model(images), targets)
            torch.autograd.backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return time.perf_counter() - began

    @torch.no_grad()
    def evaluate() -> float:
        model.eval()
        began = time.perf_counter()
        correct = 0
        for batch in torch.split(test, BATCH)[rank :: work.world]:
            images, targets = inputs(batch)
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                correct += int((network(images).argmax(dim=1) == targets).sum())
        return time.perf_counter() - began

    found: dict[str, list[float]] = {"train_s": [], "evaluate_s": []}
    for _ in range(work.epochs):
        found["train_s"].append(train_epoch())
        found["evaluate_s"].append(evaluate())
    if work.world > 1:
        torch.distributed.destroy_process_group()
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_hand_written(work: Work) -> dict[str, list[float]]:
    """Seconds of each epoch's training and of each evaluation, of the slower rank."""
    port = _free_port()
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.cpu_cells", "--rank", str(rank)),
                *("--port", str(port), "--work", json.dumps(asdict(work))),
            ],
            cwd=REPOSITORY,
            env=environment(CUDA_VISIBLE_DEVICES=""),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(work.world)
    ]
    answers = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"the loop written by hand failed: {work}")
    found = [json.loads(answer) for answer in answers]
    return {
        name: [max(values) for values in zip(*(one[name] for one in found), strict=True)]
        for name in ("train_s", "evaluate_s")
    }


# ------------------------------------------------------------------ ours


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


# ------------------------------------------------------------------ side by side


@dataclass(frozen=True)
class Row:
    """One cell: milliseconds of an epoch, and their ratio over the repeats."""

    parallel: str
    precision: str
    repeats: int
    hand_ms: float
    ours_ms: float
    ratio: float
    low: float | None  # 95% interval of the ratio; none from one repeat
    high: float | None
    evaluate_ms: float  # of the loop


def _steady(epochs: Sequence[float]) -> float:
    """The median epoch without the first, in milliseconds."""
    return 1e3 * statistics.median(epochs[1:] or epochs)


def interval(ratios: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Geometric mean with its 95% interval by t on the logarithms; no interval from one."""
    from scipy import stats

    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), None, None
    half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def compare(work: Work, repeats: int, folder: Path) -> Row:
    """Ours and the loop in turn, `repeats` times."""
    ours, hand, evaluations = [], [], []
    for repeat in range(repeats):
        for first in (repeat % 2 == 0, repeat % 2 != 0):  # who begins changes
            if first:
                found = run_hand_written(work)
                hand.append(_steady(found["train_s"]))
                evaluations.append(_steady(found["evaluate_s"]))
            else:
                ours.append(_steady(run_ours(work, folder)[0]))
    ratio, low, high = interval([a / b for a, b in zip(ours, hand, strict=True)])
    return Row(
        work.parallel,
        work.precision,
        repeats,
        statistics.median(hand),
        statistics.median(ours),
        ratio,
        low,
        high,
        statistics.median(evaluations),
    )


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


def table(rows: Sequence[Row]) -> str:
    """The cells as a Markdown table."""
    lines = [
        "| cell | by hand, ms an epoch | ours, ms an epoch | ours / by hand | 95% interval |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        spread = "-" if row.low is None else f"{row.low:.3f} to {row.high:.3f}"
        lines.append(
            f"| {row.parallel} x {row.precision} | {row.hand_ms:.0f} | {row.ours_ms:.0f} "
            f"| {row.ratio:.3f} | {spread} |"
        )
    return "\n".join(lines)


def provenance(repeats: int, epochs: int, load: float) -> str:
    """On what, with which versions, when and how often it was measured."""
    import torch

    try:
        cpus = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:  # not Linux
        cpus = []
    return (
        f"{cpus[0] if cpus else platform.machine()}, {len(os.sched_getaffinity(0))} cores (load "
        f"average {load:.1f} at the start), torch {torch.__version__}, {datetime.now(UTC).date()}; "
        f"{repeats} repeats in turn, each a fresh process of {epochs} epochs"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu_cells", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--cells", nargs="+", metavar="PARALLEL,PRECISION", help="default: all")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--train-images", type=int, help="default: all 1,437")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--channels-last", action="store_true", help="both contenders")
    parser.add_argument("--matrix", action="store_true", help="the whole bare matrix too")
    parser.add_argument("--out", type=Path, metavar="DIR", help="cells.md and cells.csv")
    for hidden in ("--rank", "--port", "--work"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.work:
        work = Work(**json.loads(options.work))
        print(json.dumps(hand_written(work, int(options.rank), int(options.port))))
        return 0
    load = os.getloadavg()[0]
    cells = [tuple(cell.split(",")) for cell in options.cells or map(",".join, CELLS)]
    rows: list[Row] = []
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="cpu-cells-") as name:
        folder = Path(name)
        for parallel, precision in cells:
            work = Work(
                parallel, precision, options.epochs, options.train_images, options.channels_last
            )
            rows.append(compare(work, options.repeats, folder))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
        if options.matrix:
            found = whole_matrix(folder, {(r.parallel, r.precision): r.evaluate_ms for r in rows})
            lines.append(
                f"The bare matrix took {found['total_s']:.1f} s, {found['train_s']:.1f} s of it "
                "training. Its second and later cells took "
                f"{found['beyond_mean_s']:.2f} s beyond training and evaluation, at most "
                f"{found['beyond_max_s']:.2f} s."
            )
    page = "\n\n".join([table(rows), *lines, provenance(options.repeats, options.epochs, load)])
    print(f"\n{page}")
    if options.out:
        given = sys.argv[1:] if argv is None else argv
        _write(options.out, rows, page, " ".join(["python -m benchmarks.cpu_cells", *given]))
    return 0


def _write(out: Path, rows: Sequence[Row], page: str, command: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    text = f"# Cells on a CPU against a loop written by hand\n\n{page}.\n\nMade by `{command}`.\n"
    (out / "cells.md").write_text(text, encoding="utf-8")
    with (out / "cells.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(asdict(rows[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
