"""Data sets with a name: scikit-learn's digits and CIFAR-10. No torch at import.

They are loaded when they are first needed, so that a prepared data set costs no import.
"""

import contextlib
import socket
import warnings
from collections.abc import Callable, Iterator
from http.client import HTTPException
from pathlib import Path
from tarfile import TarError
from typing import Any

import numpy as np

from amp_sweep.data.arrays import Part, Source
from amp_sweep.data.locked import locked
from amp_sweep.data.prepared import DataError, PartName, Progress
from amp_sweep.data.store import Images, Labels
from amp_sweep.data.subset import choose

_CHUNK = 1024
_NO_ANSWER_S = 30.0


def digits(train_images: int | None, test_images: int | None) -> Source:
    """1,797 real digits of 8x8 pixels, always the same 1,437 for training and 360 for the test.

    Raises DataError when more are asked for.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    loaded = load_digits()
    # 17 grey levels, 0..16.
    images = np.rint(loaded.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = loaded.target.astype(np.int64)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=360, random_state=0, stratify=labels
    )
    return Source(
        name="digits",
        classes=tuple(str(name) for name in loaded.target_names),
        train=_part("digits", "train", images[train], labels[train], train_images),
        test=_part("digits", "test", images[test], labels[test], test_images),
    )


def cifar10(
    root: Path, train_images: int | None, test_images: int | None, progress: Progress
) -> Source:
    """CIFAR-10 by torchvision, downloaded into `root` unless it is there. Raises DataError."""
    from torchvision.datasets import CIFAR10

    def load(train: bool) -> Any:
        with warnings.catch_warnings():
            # The pickles of 2009 are not written as NumPy 2.4 would like them.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            return CIFAR10(str(root), train=train, download=False)

    if not _is_there(lambda: load(train=False)):
        _download(CIFAR10, root, progress)
    try:
        parts = {"train": load(train=True), "test": load(train=False)}
    except (OSError, RuntimeError) as error:
        raise DataError(f"CIFAR-10 in {root} cannot be read: {error}") from error
    loaded = {
        name: (np.asarray(data.data, np.uint8), np.asarray(data.targets, np.int64))
        for name, data in parts.items()
    }
    return Source(
        name="cifar10",
        classes=tuple(str(name) for name in parts["train"].classes),
        train=_part("cifar10", "train", *loaded["train"], train_images),
        test=_part("cifar10", "test", *loaded["test"], test_images),
    )


def _is_there(load: Callable[[], object]) -> bool:
    try:
        load()
    except (OSError, RuntimeError):  # torchvision: "Dataset not found or corrupted"
        return False
    return True


def _download(dataset: Any, root: Path, progress: Progress) -> None:
    """Download and unpack once, however many processes ask. Raises DataError."""
    archive = root / dataset.filename
    try:
        root.mkdir(parents=True, exist_ok=True)
        with locked(root / ".download.lock", progress):
            progress("downloading CIFAR-10 (170 MB)", 0, 1)
            with _impatient(), warnings.catch_warnings():
                warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
                # Returns at once where another process has done it meanwhile.
                dataset(str(root), train=True, download=True)
            progress("downloading CIFAR-10 (170 MB)", 1, 1)
    except (OSError, RuntimeError, EOFError, HTTPException, TarError) as error:
        raise DataError(
            f"CIFAR-10 is not in {root} and cannot be downloaded there ({error}). Without a "
            f"network: fetch {dataset.url} elsewhere and put it at {archive}, or use your own "
            "images with data=imagefolder data.root=FOLDER, or data=digits, which needs none"
        ) from error


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """A network that swallows everything ends a download after half a minute, not never."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_NO_ANSWER_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _part(name: str, part: PartName, images: Images, labels: Labels, wanted: int | None) -> Part:
    chosen = choose(name, part, len(labels), wanted)

    def chunks(_: int | None) -> Iterator[tuple[Images, Labels]]:
        for start in range(0, len(chosen), _CHUNK):
            some = chosen[start : start + _CHUNK]
            yield images[some], labels[some]

    return Part(len(chosen), chunks)
