"""What the tests of the data share: an empty cache for each, and small images."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from amp_sweep.config import DataConfig


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the cache, empty, for this test only."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("AMP_SWEEP_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Small tensors on shared cores: more threads only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def smooth_image(height: int, width: int, seed: int) -> np.ndarray:
    """uint8 [height, width, 3]: noise enlarged, with detail at several scales."""
    random = np.random.default_rng(seed)
    coarse = random.integers(0, 256, (5, 5, 3), dtype=np.uint8)
    large = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noise = random.normal(0, 10, (height, width, 3))
    return np.clip(np.asarray(large) + noise, 0, 255).astype(np.uint8)


@pytest.fixture
def picture() -> Callable[[int, int, int], np.ndarray]:
    return smooth_image


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[..., Path]:
    """Write an image folder: `{"train/cat": 3, "test/cat": 2}` and so on."""

    def make(
        counts: dict[str, int] | None = None,
        size: tuple[int, int] = (12, 10),
        suffix: str = "png",
        name: str = "images",
    ) -> Path:
        root = tmp_path / name
        counts = counts or {"train/cat": 4, "train/dog": 3, "test/cat": 2, "test/dog": 2}
        for seed, (folder, count) in enumerate(counts.items()):
            (root / folder).mkdir(parents=True)
            for index in range(count):
                image = Image.fromarray(smooth_image(*size, seed=100 * seed + index))
                image.save(root / folder / f"{index:03d}.{suffix}")
        return root

    return make


@pytest.fixture
def folder_config() -> Callable[..., DataConfig]:
    def make(root: Path, **values: object) -> DataConfig:
        return DataConfig(name="imagefolder", root=str(root), **{"image_size": 16, **values})

    return make


class Log:
    """A progress callback that remembers what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, what: str, done: int, total: int) -> None:
        self.calls.append((what, done, total))

    @property
    def worked(self) -> bool:
        return any(what.startswith(("decoding", "preparing")) for what, _, _ in self.calls)


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def new_log() -> type[Log]:
    return Log
