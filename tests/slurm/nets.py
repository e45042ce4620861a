"""A small network that is slow or fails when told to, and says which devices its rank sees."""

import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """Takes SLOW seconds a step; raises on rank FAIL in float32."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.AdaptiveAvgPool2d(8),
            nn.Flatten(),
            nn.Linear(192, 32),
            nn.Dropout(),
            nn.ReLU(),
            nn.Linear(32, num_classes),
        )
        if "SEEN" in os.environ and "RANK" in os.environ:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "unset")
            name = f"{os.environ['SLURM_JOB_ID']}-{os.environ['RANK']}"
            Path(os.environ["SEEN"], name).write_text(visible)

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            half = torch.is_autocast_enabled("cpu")
            if "FAIL" in os.environ and os.environ["FAIL"] == os.environ.get("RANK") and not half:
                raise ValueError("planted")
            time.sleep(float(os.environ.get("SLOW", "0")))
        logits: Tensor = self.body(images)
        return logits
