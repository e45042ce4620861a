"""Data sets with a name: scikit-learn's digits and CIFAR-10. No torch at import.

They are loaded when they are first needed, so that a prepared data set costs no import.
"""

import contextlib
import io
import socket
import threading
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
_ARCHIVE_MIB = 163


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
        with _old_pickles():
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
        with (
            locked(root / ".download.lock", progress),
            _impatient(),
            _watched(archive, progress),
            _old_pickles(),
        ):
            # Returns at once where another process has done it meanwhile.
            dataset(str(root), train=True, download=True)
    except (OSError, RuntimeError, EOFError, HTTPException, TarError) as error:
        raise DataError(
            f"CIFAR-10 is not in {root} and cannot be downloaded there ({error}). Without a "
            f"network: fetch {dataset.url} elsewhere and put it at {archive}, or use your own "
            "images with data=imagefolder data.root=FOLDER, or data=digits, which needs none"
        ) from error


@contextlib.contextmanager
def _old_pickles() -> Iterator[None]:
    """The pickles of 2009 are not written as NumPy 2.4 would like them, and it says so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
        yield


@contextlib.contextmanager
def _watched(archive: Path, progress: Progress) -> Iterator[None]:
    """Report how much of the archive is there, in place of torchvision's own bar."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            with contextlib.suppress(OSError):
                done = min(archive.stat().st_size // 2**20, _ARCHIVE_MIB - 1)
                progress("downloading CIFAR-10 (MiB)", done, _ARCHIVE_MIB)

    progress("downloading CIFAR-10 (MiB)", 0, _ARCHIVE_MIB)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        over.set()
        watcher.join()
    progress("downloading CIFAR-10 (MiB)", _ARCHIVE_MIB, _ARCHIVE_MIB)


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
