"""Images into files: pixels, labels, statistics, digest. No torch here."""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from amp_sweep.data.prepared import (
    FORMAT,
    META_NAME,
    PARTS,
    DataError,
    PartName,
    Prepared,
    labels_path,
)
from amp_sweep.record import write_atomic

Images = NDArray[np.uint8]  # [n, height, width, channels]
Labels = NDArray[np.int64]  # [n]


class SizesVary(Exception):
    """Not all images have one size: they must be resized to be stored together."""


@dataclass(frozen=True)
class Target:
    """A `.npy` file of images that is being filled, by several processes at once."""

    path: Path
    offset: int  # bytes before the first pixel
    shape: tuple[int, int, int, int]


@dataclass(frozen=True)
class Tally:
    """What is known of some images once they have gone by: exact integers, so it adds up."""

    start: int
    pixels: int
    sums: tuple[int, ...]  # per channel
    squares: tuple[int, ...]
    hashes: bytes  # SHA-256 of each image, in order


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns a failed write (full disk, no permission) into a DataError."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write the prepared data to {path}: {error.strerror or error}; "
            "make room, or set AMP_SWEEP_CACHE to another folder"
        ) from error


def create(path: Path, shape: tuple[int, int, int, int]) -> Target:
    """A new `.npy` file for uint8 images of `shape`, empty so far. Raises DataError."""
    with writing(path):
        array = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    return Target(path, array.offset, shape)


def absorb(images: Images, start: int, target: Target | None) -> Tally:
    """Count and hash the images, and store them from index `start` on. Raises DataError."""
    images = np.ascontiguousarray(images)
    if target is not None:
        # Not through a memory map: on a full disk that ends the process by SIGBUS.
        position = target.offset + start * images[0].nbytes
        with writing(target.path), target.path.open("r+b") as file:
            file.seek(position)
            file.write(images.data)
    axes = (0, 1, 2)
    return Tally(
        start=start,
        pixels=images.shape[0] * images.shape[1] * images.shape[2],
        sums=tuple(images.sum(axis=axes, dtype=np.int64).tolist()),
        # 255 ** 2 just fits.
        squares=tuple(np.square(images, dtype=np.uint16).sum(axes, dtype=np.int64).tolist()),
        hashes=image_hashes(images),
    )


def image_hashes(images: Images) -> bytes:
    """SHA-256 of each image, in order."""
    return b"".join(hashlib.sha256(image.data).digest() for image in images)


def merge(tallies: Iterable[Tally]) -> Tally:
    """The tallies of all chunks of a part as one; any order."""
    ordered = sorted(tallies, key=lambda tally: tally.start)
    return Tally(
        start=0,
        pixels=sum(tally.pixels for tally in ordered),
        sums=tuple(sum(column) for column in zip(*(t.sums for t in ordered), strict=True)),
        squares=tuple(sum(column) for column in zip(*(t.squares for t in ordered), strict=True)),
        hashes=b"".join(tally.hashes for tally in ordered),
    )


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write a small array as `.npy`. Raises DataError."""
    # NumPy itself would tell of a full disk without the system's reason.
    content = io.BytesIO()
    np.save(content, array)
    with writing(path):
        path.write_bytes(content.getbuffer())


def content_digest(
    classes: tuple[str, ...], shape: tuple[int, ...], parts: Iterable[tuple[Labels, bytes]]
) -> str:
    """SHA-256, in hex, of [height, width, channels], classes, labels and hashes per image."""
    total = hashlib.sha256(json.dumps([list(shape), list(classes)]).encode())
    for labels, hashes in parts:
        total.update(len(labels).to_bytes(8, "little"))
        total.update(labels.astype("<i8").tobytes())
        total.update(hashes)
    return total.hexdigest()


def statistics(tally: Tally) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation per channel, on the scale 0..1."""
    means, stds = [], []
    for total, squares in zip(tally.sums, tally.squares, strict=True):
        # In integers up to the last step: nothing cancels.
        variance = (squares * tally.pixels - total * total) / (tally.pixels * tally.pixels)
        means.append(total / tally.pixels / 255)
        stds.append(variance**0.5 / 255)
    return tuple(means), tuple(stds)


def finish(
    folder: Path,
    made_from: dict[str, Any],
    classes: tuple[str, ...],
    shape: tuple[int, int, int],
    parts: dict[PartName, tuple[Labels, Tally]],
    **more: Any,
) -> Prepared:
    """Write labels and, last of all, `meta.json`. Raises DataError."""
    mean, std = statistics(parts["train"][1])
    for part in PARTS:
        save_array(labels_path(folder, part), parts[part][0])
    prepared = Prepared(
        folder=folder,
        classes=classes,
        train_count=len(parts["train"][0]),
        test_count=len(parts["test"][0]),
        height=shape[0],
        width=shape[1],
        channels=shape[2],
        mean=mean,
        std=std,
        digest=content_digest(
            classes, shape, [(parts[part][0], parts[part][1].hashes) for part in PARTS]
        ),
        **more,
    )
    values = dataclasses.asdict(prepared)
    del values["folder"]
    with writing(folder):
        files = {}
        for path in sorted(folder.glob("*.npy")):
            with path.open("rb") as file:
                os.fsync(file.fileno())
            status = path.stat()
            files[path.name] = [status.st_size, status.st_mtime_ns]
        meta = {"format": FORMAT, "made_from": made_from, "files": files, "prepared": values}
        write_atomic(folder / META_NAME, json.dumps(meta, indent=1))
    return prepared
