"""The loop written by hand: `python -m benchmarks.cpu_cells.hand_written RANK PORT JSON`.

A process is one rank, which meets the others at PORT, and prints its seconds as JSON. JSON gives
the fields of `Work`.
"""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict

from benchmarks.cpu_cells.work import Work
from benchmarks.shared.children import REPOSITORY, environment

BATCH, SIZE, LR = 64, 64, 1e-3


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
                *(sys.executable, "-m", "benchmarks.cpu_cells.hand_written"),
                *(str(rank), str(port), json.dumps(asdict(work))),
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


if __name__ == "__main__":
    found = hand_written(Work(**json.loads(sys.argv[3])), int(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(found))
