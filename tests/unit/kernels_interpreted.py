"""Runs the Triton kernels on the CPU by Triton's interpreter and compares them with PyTorch."""

import itertools
import os
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch

from amp_sweep.config import DataConfig
from amp_sweep.data import Prepared, open_split, prepare
from amp_sweep.fast import adamw

# Height, width and channels of the stored images, and the size of the network's.
GEOMETRIES = [
    (32, 32, 3, 101),  # 227 pixels on a GPU: each block takes the interpreter milliseconds
    (32, 32, 3, 32),
    (28, 28, 1, 63),
    (28, 28, 1, 28),
    (20, 31, 3, 50),
    (40, 20, 3, 40),
    (13, 40, 1, 40),
    (8, 8, 1, 8),
]


def check_adamw() -> None:
    count, update = adamw._compiled()
    size, beta1, beta2, eps = 3000, 0.9, 0.999, 1e-8
    for dtype, skip in itertools.product(
        (torch.float16, torch.bfloat16, torch.float32), (0.0, 1.0)
    ):
        torch.manual_seed(0)
        master, average = torch.randn(size), torch.randn(size) * 0.01
        square = torch.rand(size) * 0.01
        gradient = (torch.randn(size) * 3).to(dtype)
        ours = [master.to(dtype), master, average, square]
        theirs = [tensor.clone() for tensor in ours]
        step, again = torch.tensor(3.0), torch.tensor(3.0)
        lr, scale, found = torch.tensor(1e-2), torch.tensor(8.0), torch.tensor(skip)
        expected = adamw.scalars_reference(step, lr, scale, found, beta1, beta2, 0.01)
        scalars = torch.empty(5)
        count[(1,)](again, lr, scale, found, scalars, beta1, beta2, 0.01, True)
        assert torch.allclose(scalars, expected, rtol=1e-6) and step == again == 4 - skip
        adamw.update_reference(*theirs, gradient, expected, beta1, beta2, eps)
        update[(3,)](*ours, gradient, scalars, size, beta1, beta2, eps, 1024)
        for one, other in zip(ours[1:], theirs[1:], strict=True):
            assert torch.allclose(one, other, rtol=1e-6, atol=1e-8)
        # Rounding to half precision may fall on either side.
        rounding = torch.finfo(dtype).eps
        assert torch.allclose(ours[0].float(), theirs[0].float(), rtol=rounding)
        assert skip == 0 or torch.equal(ours[1], master)


def check_input() -> None:
    rows = torch.tensor([5, 0, 5, 2, 6])
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AMP_SWEEP_CACHE"] = folder
        for height, width, channels, size in GEOMETRIES:
            for channels_last, normalize in itertools.product((False, True), repeat=2):
                config = DataConfig(
                    name=f"{Path(__file__).stem}:noise",
                    root=f"{height}x{width}x{channels}",
                    image_size=size,
                    normalize=normalize,
                )
                prepared = prepare(config)
                assert prepared.channels == channels
                check_one_launch(prepared, config, rows, channels_last)


def noise(root: str, train: bool) -> list[tuple[np.ndarray, int]]:
    """Seven images of three classes; `root` says their height, width and channels."""
    shape = tuple(int(number) for number in root.split("x"))
    random = np.random.default_rng(int(train))
    return [(random.integers(0, 256, shape, dtype=np.uint8), number % 3) for number in range(7)]


def check_one_launch(
    prepared: Prepared, config: DataConfig, rows: torch.Tensor, channels_last: bool
) -> None:
    split = open_split(prepared, "train", config, torch.device("cpu"), channels_last)
    assert split._resident is not None
    (raw,) = split.batches([rows])
    expected, expected_labels = split.to_input(raw)
    split._fused = split._one_launch(split._resident)
    assert split.fused
    images, labels = split.to_input(raw)
    assert images.stride() == expected.stride() and images.dtype == expected.dtype
    assert torch.equal(labels, expected_labels) and len(set(labels.tolist())) > 1
    # The CPU's own resize rounds in another order.
    assert (images - expected).abs().max() < 1e-5
    if not config.normalize and not split._resizes:
        assert torch.equal(images, expected)


if __name__ == "__main__":
    check_adamw()
    check_input()
