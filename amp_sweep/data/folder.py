"""A folder of images, a subfolder per class: what is in it, without opening any. No torch here."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from amp_sweep.data.prepared import PARTS, DataError, PartName
from amp_sweep.data.store import Labels
from amp_sweep.data.subset import choose

# What torchvision's ImageFolder accepts.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

_LAYOUT = "expected train/ and test/ (or val/) in it, each with a folder of images per class"


@dataclass(frozen=True)
class FileList:
    """The chosen images of a part, paths relative to the root."""

    paths: list[str]
    labels: Labels
    mean_bytes: int  # of a file

    def __len__(self) -> int:
        return len(self.paths)


@dataclass(frozen=True)
class Listing:
    """A folder of images: `digest` changes when any file is added, removed, renamed or written."""

    root: Path
    classes: tuple[str, ...]
    train: FileList
    test: FileList
    digest: str


@dataclass(frozen=True)
class _Found:
    path: str  # relative to the root
    size: int
    mtime_ns: int


def list_folder(root: str, train_images: int | None, test_images: int | None) -> Listing:
    """List `root` and choose its images. A label is the place of the class's name in the sorted
    names of train's classes, in test too. Raises DataError.
    """
    folder = Path(root).expanduser().absolute()
    try:
        if not folder.is_dir():
            what = "is no folder" if folder.exists() else "does not exist"
            raise DataError(f"data.root={root} {what}; {_LAYOUT}")
        test_name = _test_folder(folder)
        found = {
            "train": _by_class(folder, "train"),
            "test": _by_class(folder, test_name),
        }
    except OSError as error:
        raise DataError(f"{error.filename}: {error.strerror}") from error
    classes = tuple(found["train"])
    unknown = [name for name in found["test"] if name not in found["train"]]
    if unknown:
        raise DataError(
            f"{folder / test_name / unknown[0]}: class {unknown[0]!r} is not among the classes "
            f"of {folder / 'train'} ({_some(classes)})"
        )
    wanted = {"train": train_images, "test": test_images}
    files = {part: _choose(part, found[part], classes, wanted[part]) for part in PARTS}
    return Listing(folder, classes, files["train"], files["test"], _digest(found))


def _test_folder(root: Path) -> str:
    """`test` where it has class folders, else `val`. Raises DataError when there is none."""
    for name in ("train", "test", "val"):
        if (root / name).is_dir() and _classes(root / name):
            if name != "train":
                return name
        elif name == "train":
            state = "has no class folders" if (root / name).is_dir() else "does not exist"
            raise DataError(f"{root / name} {state}; {_LAYOUT}")
    there = [name for name in ("test", "val") if (root / name).is_dir()]
    if there:
        raise DataError(f"{root / there[0]} has no class folders; {_LAYOUT}")
    raise DataError(f"{root} has neither test/ nor val/; {_LAYOUT}")


def _classes(folder: Path) -> list[str]:
    """Names of the class folders, sorted as torchvision sorts them."""
    try:
        with os.scandir(folder) as entries:
            return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}") from error


def _by_class(root: Path, name: str) -> dict[str, list[_Found]]:
    """The images of each class, sorted by path. Raises OSError and DataError."""
    found = {}
    for class_name in _classes(root / name):
        start = root / name / class_name
        images = sorted(_images(start, f"{name}/{class_name}", ()), key=lambda image: image.path)
        if not images:
            raise DataError(f"{start}: no images in it (accepted: {' '.join(EXTENSIONS)})")
        found[class_name] = images
    return found


def _images(folder: Path, relative: str, above: tuple[tuple[int, int], ...]) -> Iterator[_Found]:
    """Images at any depth; hidden files and folders do not count. Raises OSError."""
    status = folder.stat()
    here = (status.st_dev, status.st_ino)
    if here in above:
        return  # a link to a folder above: without an end
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = f"{relative}/{entry.name}"
            if entry.is_dir():
                yield from _images(folder / entry.name, path, (*above, here))
            elif entry.name.lower().endswith(EXTENSIONS):
                status = entry.stat()
                yield _Found(path, status.st_size, status.st_mtime_ns)


def _choose(
    part: PartName, found: dict[str, list[_Found]], classes: tuple[str, ...], wanted: int | None
) -> FileList:
    label = {name: index for index, name in enumerate(classes)}
    every = [(image, label[name]) for name, images in found.items() for image in images]
    chosen = [every[index] for index in choose("imagefolder", part, len(every), wanted)]
    return FileList(
        paths=[image.path for image, _ in chosen],
        labels=np.array([number for _, number in chosen], dtype=np.int64),
        mean_bytes=sum(image.size for image, _ in chosen) // len(chosen),
    )


def _digest(found: dict[str, dict[str, list[_Found]]]) -> str:
    total = hashlib.sha256()
    for by_class in found.values():
        for images in by_class.values():
            for image in images:
                line = f"{image.path}\0{image.size}\0{image.mtime_ns}\n"
                total.update(line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:10])
    return shown if len(names) <= 10 else f"{shown} and {len(names) - 10} more"
