"""A small network that fails on one rank, in one way, at one step: FAULT=kind:rank:step."""

import ctypes
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Learns a little, draws dropout masks, and takes SLOW seconds a step."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(8),
            nn.Flatten(),
            nn.Linear(192, 64),
            nn.Dropout(),
            nn.ReLU(),
            nn.Linear(64, num_classes),
        )
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            kind, rank, step = os.environ.get("FAULT", "nothing:0:0").split(":")
            if self.calls == int(step) and os.environ.get("RANK") == rank:
                getattr(self, kind)()
            time.sleep(float(os.environ.get("SLOW", "0")))
        logits: Tensor = self.body(images)
        return logits

    def raises(self) -> None:
        raise ValueError("planted")

    def exits(self) -> None:
        sys.exit(0)

    def exits_at_once(self) -> None:
        os._exit(0)

    def crashes(self) -> None:
        ctypes.string_at(0)

    def hangs(self) -> None:
        time.sleep(3600)

    def out_of_memory(self) -> None:
        raise MemoryError("planted")

    def eats_memory(self) -> None:
        hoard = [bytearray(os.urandom(1 << 20)) * 16 for _ in range(200)]  # 3.2 GiB
        raise RuntimeError(f"{len(hoard)} blocks fitted")

    def is_killed(self) -> None:
        os.kill(os.getpid(), 9)

    def drifts(self) -> None:
        with torch.no_grad():
            next(self.parameters()).add_(1)

    def lists_sockets(self) -> None:
        text = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        Path("sockets.txt").write_text(text)
        inodes = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                group = os.getpgid(int(process.name))
                if group == os.getpgid(0):
                    inodes += [str(link.readlink()) for link in (process / "fd").iterdir()]
            except OSError:
                continue
        Path("inodes.txt").write_text("\n".join(inodes))
