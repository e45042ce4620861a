"""A data set that comes as arrays, chunk by chunk, into files. No torch here."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from amp_sweep.data.prepared import PARTS, DataError, PartName, Prepared, Progress, images_path
from amp_sweep.data.store import (
    Images,
    Labels,
    SizesVary,
    Tally,
    Target,
    absorb,
    create,
    finish,
    merge,
)


@dataclass(frozen=True)
class Part:
    """The images of a part before they are stored.

    `chunks(resize_to)` gives all of them in order. With None they keep their size, and
    SizesVary is raised when these differ.
    """

    count: int
    chunks: Callable[[int | None], Iterator[tuple[Images, Labels]]]


@dataclass(frozen=True)
class Source:
    """A data set before it is stored; `classes` is None where only the labels tell."""

    name: str
    classes: tuple[str, ...] | None
    train: Part
    test: Part


def store_arrays(
    folder: Path,
    made_from: dict[str, Any],
    source: Source,
    image_size: int,
    progress: Progress,
) -> Prepared:
    """Fill `folder` from a source of arrays. Raises DataError."""
    try:
        return _store_arrays(folder, made_from, source, None, progress)
    except SizesVary:
        return _store_arrays(folder, made_from, source, image_size, progress)


def _store_arrays(
    folder: Path,
    made_from: dict[str, Any],
    source: Source,
    resize_to: int | None,
    progress: Progress,
) -> Prepared:
    shape: tuple[int, int, int] | None = None
    classes = source.classes
    parts: dict[PartName, tuple[Labels, Tally]] = {}
    for name in PARTS:
        part = source.train if name == "train" else source.test
        target: Target | None = None
        labels: list[Labels] = []
        tallies: list[Tally] = []
        done = 0
        for images, chunk_labels in part.chunks(resize_to):
            shape = shape or images.shape[1:]
            _check_shape(source.name, images, shape)
            target = target or create(images_path(folder, name), (part.count, *shape))
            tallies.append(absorb(images, done, target))
            labels.append(chunk_labels)
            done += len(images)
            progress(f"preparing {name} images", done, part.count)
        joined = np.concatenate(labels)
        if classes is None:
            classes = tuple(str(label) for label in range(int(joined.max()) + 1))
        _check_labels(source.name, name, joined, classes)
        parts[name] = (joined, merge(tallies))
    if shape is None or classes is None:
        raise DataError(f"data.name={source.name}: no images")
    return finish(folder, made_from, classes, shape, parts, resized_to=resize_to)


def _check_shape(name: str, images: Images, shape: tuple[int, int, int]) -> None:
    if images.shape[3] != shape[2]:
        raise DataError(
            f"data.name={name}: images have {shape[2]} and {images.shape[3]} channels; "
            "all must have the same number"
        )
    if images.shape[1:3] != shape[:2]:
        raise SizesVary


def _check_labels(name: str, part: str, labels: Labels, classes: tuple[str, ...]) -> None:
    wrong = np.flatnonzero((labels < 0) | (labels >= len(classes)))
    if len(wrong):
        raise DataError(
            f"data.name={name}: {part} image {wrong[0]} has label {labels[wrong[0]]}, expected "
            f"0 to {len(classes) - 1} (the training images have {len(classes)} classes)"
        )
