"""Folders of small images for the tests."""

from pathlib import Path

import numpy as np
from PIL import Image


def make_folder(root: Path, train: int, test: int, size: int = 20) -> None:
    """Two classes of JPEG files, dark and light, under `train/` and `test/`."""
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("test", test)):
        for index in range(count):
            light = index % 2
            folder = root / part / ("light" if light else "dark")
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(128 * light, 128 + 127 * light, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{index:04d}.jpg")
