"""A small network that fails in one way, on one rank, at one step, or is slow, as it is told.

Copied into a working directory as `faults.py`, and named there as `faults:Net`.
FAULT=kind:rank:step, or several with the seed they are meant for: kind:rank:step:seed,...
SLOW=seconds a step. SEEN=folder: each rank writes there which devices it sees.
"""

import ctypes
import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn


def planned() -> tuple[str, str, int]:
    """The kind, the rank and the step of this cell's fault."""
    for fault in filter(None, os.environ.get("FAULT", "").split(",")):
        kind, rank, step, *seed = fault.split(":")
        # The rank has seeded PyTorch with the cell's seed when it builds the network.
        if seed in ([], [str(torch.initial_seed())]):
            return kind, rank, int(step)
    return "nothing", "", 0


class Net(nn.Module):
    """Learns a little, and draws dropout masks."""

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
        self.fault, self.rank, self.step = planned()
        self.calls = 0
        if "SEEN" in os.environ and "RANK" in os.environ:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
            name = f"{os.environ['SLURM_JOB_ID']}-{os.environ['RANK']}"
            Path(os.environ["SEEN"], name).write_text(visible)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            if self.calls == self.step and os.environ.get("RANK") == self.rank:
                getattr(self, self.fault)()
            time.sleep(float(os.environ.get("SLOW", "0")))
        logits: Tensor = self.body(images)
        return logits

    def raises(self) -> None:
        raise ValueError("planted")

    def raises_in_float32(self) -> None:
        if not torch.is_autocast_enabled("cpu"):
            self.raises()

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

    def out_of_device_memory(self) -> None:  # outside PyTorch's own allocator
        raise RuntimeError("CUDA error: out of memory\nplanted")

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
