"""What a prepared data set is, and how a rank finds it again. No torch here."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

# What lies in the folder of a prepared data set; a change here makes every cache be built anew.
FORMAT = 1

META_NAME = "meta.json"  # written last

PartName = Literal["train", "test"]
PARTS: tuple[PartName, PartName] = ("train", "test")

# Called as progress(what, done, total).
Progress = Callable[[str, int, int], None]


class DataError(Exception):
    """The data cannot be used; the message tells a person which key or file, and what to do."""


class Unsupported(DataError):
    """This machine cannot do what was asked for."""


@dataclass(frozen=True)
class Prepared:
    """A data set that is ready: decoded, checked and measured.

    `height`, `width` and `channels` are those of the images as the pipeline finds them: of
    the stored pixels, or of the files of a data set that is not stored. `mean` and `std`
    are per channel over the training images, on the scale 0..1; `std` is the population's.
    `digest` is the SHA-256, in hex, of classes, labels and pixels: the same pixels have the
    same digest whether they are stored or not.
    """

    folder: Path
    classes: tuple[str, ...]
    train_count: int
    test_count: int
    channels: int
    height: int
    width: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    digest: str
    stored: bool = True  # pixels in `*_images.npy`; otherwise file names in `*_files.npy`
    root: str | None = None  # folder of the files, where they are not stored
    resized_to: int | None = None  # files of different sizes come as squares of this many pixels

    def count(self, part: PartName) -> int:
        """How many images `part` has."""
        return self.train_count if part == "train" else self.test_count

    @property
    def pixel_bytes(self) -> int:
        """Size of all images of both parts as uint8."""
        image = self.height * self.width * self.channels
        return (self.train_count + self.test_count) * image


def images_path(folder: Path, part: PartName) -> Path:
    """uint8 [count, height, width, channels]."""
    return folder / f"{part}_images.npy"


def labels_path(folder: Path, part: PartName) -> Path:
    """int64 [count]."""
    return folder / f"{part}_labels.npy"


def files_path(folder: Path, part: PartName) -> Path:
    """Bytes [count]: paths relative to `Prepared.root`, in the file system's encoding."""
    return folder / f"{part}_files.npy"


def read_meta(folder: Path) -> dict[str, Any]:
    """The content of `meta.json`. Raises OSError and ValueError."""
    meta = json.loads((folder / META_NAME).read_text(encoding="utf-8"))
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ValueError("another format")
    return meta


def from_meta(folder: Path, meta: dict[str, Any]) -> Prepared:
    """The data set that `meta` describes. Raises KeyError and TypeError."""
    values = dict(meta["prepared"])
    for name in ("classes", "mean", "std"):
        values[name] = tuple(values[name])
    return Prepared(folder=folder, **values)


def sizes_agree(folder: Path, meta: dict[str, Any]) -> bool:
    """Whether every file is there with the size noted in `meta`. Raises KeyError, TypeError."""
    for name, (size, _) in meta["files"].items():
        try:
            if (folder / name).stat().st_size != size:
                return False
        except OSError:
            return False
    return True


def open_prepared(folder: Path) -> Prepared:
    """Read back what `prepare` made: no listing, no decoding. Raises DataError."""
    try:
        meta = read_meta(folder)
        prepared = from_meta(folder, meta)
        complete = sizes_agree(folder, meta)
    except OSError as error:
        raise DataError(f"{folder}: prepared data cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder}: prepared data are damaged; start again") from error
    if not complete:
        raise DataError(f"{folder}: prepared data are incomplete; start again")
    return prepared


def map_array(path: Path) -> NDArray[Any]:
    """A `.npy` file mapped into memory, read only. Raises DataError."""
    try:
        # A plain array: indexing a memmap object costs more for nothing.
        return np.load(path, mmap_mode="r").view(np.ndarray)  # type: ignore[no-any-return]
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: damaged; start again") from error


def training_steps(train_count: int, batch: int) -> int:
    """Steps of an epoch: an incomplete last batch of `batch` images is dropped."""
    return train_count // batch
