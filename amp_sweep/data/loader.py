"""Images fetched on the host, in this process or in loader processes."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from amp_sweep.data.children import FOR_THE_PARENT, end_with_parent, signals_held
from amp_sweep.data.decode import open_rgb, resize
from amp_sweep.data.files import decode_into
from amp_sweep.data.jpeg import plain_size
from amp_sweep.data.prepared import (
    DataError,
    PartName,
    Prepared,
    files_path,
    images_path,
    map_array,
)
from amp_sweep.data.store import SizesVary

# SIGTERM is the way to end a loader process; on Linux one can see who sent it.
_HELD = FOR_THE_PARENT | ({signal.SIGTERM} if sys.platform == "linux" else set())

_PRELOADED = ["torch", "numpy", "PIL.Image", "amp_sweep.data.loader"]


class Images(Protocol):
    """The images of a part, wherever they are."""

    def fill(self, out: NDArray[np.uint8], indices: NDArray[np.int64]) -> None:
        """Write the images to `out`, uint8 [n, height, width, channels]. Raises DataError."""

    def image(self, index: int) -> Image.Image:
        """One image at its original size, in mode RGB. Raises DataError."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels of what `fill` writes."""


class StoredImages:
    """Images in a `.npy` file; each process maps it for itself."""

    def __init__(self, prepared: Prepared, part: PartName) -> None:
        self._arguments = (prepared, part)
        self._pixels: NDArray[np.uint8] = map_array(images_path(prepared.folder, part))
        self.shape = (prepared.height, prepared.width, prepared.channels)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    def fill(self, out: NDArray[np.uint8], indices: NDArray[np.int64]) -> None:
        """See `Images`; indices must be in range."""
        # The default mode would go through a buffer of the same size.
        np.take(self._pixels, indices, axis=0, out=out, mode="clip")

    def image(self, index: int) -> Image.Image:
        """See `Images`."""
        pixels = self._pixels[index]
        return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB")


class FileImages:
    """Images in files, decoded each time."""

    def __init__(self, prepared: Prepared, part: PartName) -> None:
        self._arguments = (prepared, part)
        self._root = prepared.root
        self._files: NDArray[np.bytes_] = map_array(files_path(prepared.folder, part))
        self._resize_to = prepared.resized_to
        self.shape = (prepared.height, prepared.width, prepared.channels)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    def path(self, index: int) -> str:
        """Where an image lies."""
        return f"{self._root}/{os.fsdecode(self._files[index])}"

    def fill(self, out: NDArray[np.uint8], indices: NDArray[np.int64]) -> None:
        """See `Images`."""
        paths = [self.path(int(index)) for index in indices]
        try:
            decode_into(out, paths, self._resize_to)
        except SizesVary as error:
            raise self._changed() from error

    def jpeg(self, index: int) -> bytes | None:
        """The file, if it is plain JPEG (see `plain_size`). Raises DataError."""
        path = self.path(index)
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from error
        size = plain_size(data)
        if size is not None and self._resize_to is None and size != self.shape[:2]:
            raise self._changed()
        return None if size is None else data

    def _changed(self) -> DataError:
        return DataError(f"images in {self._root} have changed; start again")

    def image(self, index: int) -> Image.Image:
        """See `Images`."""
        return open_rgb(self.path(index))


def open_images(prepared: Prepared, part: PartName) -> StoredImages | FileImages:
    """The images of a part, stored or in files. Raises DataError."""
    return StoredImages(prepared, part) if prepared.stored else FileImages(prepared, part)


def fetch(images: Images, indices: NDArray[np.int64], pinned: bool) -> torch.Tensor:
    """A batch as uint8 [n, height, width, channels] on the host. Raises DataError."""
    batch = torch.empty((len(indices), *images.shape), dtype=torch.uint8, pin_memory=pinned)
    images.fill(batch.numpy(), indices)
    return batch


# Datasets whose item is a whole batch. A DataError travels as a value: what a loader process
# raises would arrive as a page of tracebacks.
Batch = TypeVar("Batch")


class RawBatches(Dataset[torch.Tensor | DataError]):
    """Batches as uint8 [n, height, width, channels], for the device to resize."""

    def __init__(self, images: Images) -> None:
        self._images = images

    def __getitem__(self, indices: NDArray[np.int64]) -> torch.Tensor | DataError:
        try:
            return fetch(self._images, indices, pinned=False)
        except DataError as error:
            return error


@dataclass(frozen=True)
class Encoded:
    """A batch of files for a decoder on the device, and what the host had to decode itself.

    jpegs: uint8 [bytes], plain JPEG files one after the other; lengths: of each in bytes;
    places: of each in the batch.
    pixels: uint8 [n, height, width, channels] of the other images; others: their places.
    """

    jpegs: torch.Tensor
    lengths: list[int]
    places: list[int]
    pixels: torch.Tensor
    others: list[int]


class EncodedBatches(Dataset[Encoded | DataError]):
    """Batches of files that are only read."""

    def __init__(self, images: FileImages) -> None:
        self._images = images

    def __getitem__(self, indices: NDArray[np.int64]) -> Encoded | DataError:
        try:
            files = [self._images.jpeg(int(index)) for index in indices]
            others = [place for place, file in enumerate(files) if file is None]
            pixels = fetch(self._images, indices[others], pinned=False)
        except DataError as error:
            return error
        jpegs = [file for file in files if file is not None]
        return Encoded(
            # An empty buffer is an error there.
            jpegs=torch.frombuffer(bytearray(b"".join(jpegs)) or bytearray(1), dtype=torch.uint8),
            lengths=[len(file) for file in jpegs],
            places=[place for place, file in enumerate(files) if file is not None],
            pixels=pixels,
            others=others,
        )


class ArticleBatches(Dataset[torch.Tensor | DataError]):
    """Batches made as the article makes them: PIL per image, float32 [n, 3, size, size].

    `mean` and `std` are per channel (3, or 1 for grey images), None without normalisation.
    """

    def __init__(
        self,
        images: Images,
        size: int,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
    ) -> None:
        self._images = images
        self._size = size
        self._mean = mean
        self._std = std

    def _one(self, index: int) -> torch.Tensor:
        pixels = np.array(resize(self._images.image(index), self._size))
        image = torch.from_numpy(pixels).permute(2, 0, 1).contiguous().to(torch.float32).div_(255)
        if self._mean is not None and self._std is not None:
            mean = torch.tensor(self._mean).view(-1, 1, 1)
            image.sub_(mean).div_(torch.tensor(self._std).view(-1, 1, 1))
        return image

    def __getitem__(self, indices: NDArray[np.int64]) -> torch.Tensor | DataError:
        try:
            return torch.stack([self._one(index) for index in indices.tolist()])
        except DataError as error:
            return error


class _Plan:
    """The sampler of a DataLoader whose batches differ from epoch to epoch."""

    def __init__(self) -> None:
        self.batches: list[NDArray[np.int64]] = []

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return iter(self.batches)


class HostBatches(Generic[Batch]):
    """Batches of a dataset, made by `workers` loader processes or (0) when they are asked for.

    The processes live on from epoch to epoch, until `close`.
    """

    def __init__(self, dataset: Dataset[Batch | DataError], workers: int, pinned: bool) -> None:
        self._plan = _Plan()
        self._loader: DataLoader[Batch | DataError] | None = DataLoader(
            dataset,
            batch_size=None,
            sampler=self._plan,
            num_workers=workers,
            pin_memory=pinned,
            multiprocessing_context="forkserver" if workers else None,
            persistent_workers=workers > 0,
            worker_init_fn=_start_worker if workers else None,
        )
        if workers:
            # Else each process imports torch for itself, at two seconds of a core.
            multiprocessing.set_forkserver_preload(_PRELOADED)

    def run(self, batches: Iterable[torch.Tensor]) -> Iterator[Batch]:
        """The batches with these indices, in order; one run at a time. Raises DataError."""
        if self._loader is None:
            raise ValueError("these batches are closed")
        # NumPy: a tensor would go to the loader process through shared memory.
        self._plan.batches = [indices.numpy() for indices in batches]
        with signals_held(_HELD):  # the first run starts the processes
            made = iter(self._loader)
        for batch in made:
            if isinstance(batch, DataError):
                raise batch
            yield batch

    def close(self) -> None:
        """End the loader processes."""
        self._loader = None


def _start_worker(_: int) -> None:
    """First thing in a loader process: it ends with its rank, or when its rank says so."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HELD)
    end_with_parent()
    rank = multiprocessing.parent_process()
    if rank is not None and sys.platform == "linux":
        threading.Thread(target=_end_when_told, args=(rank.pid,), daemon=True).start()


def _end_when_told(rank: int | None) -> None:
    if sys.platform == "linux":
        while True:
            if signal.sigwaitinfo({signal.SIGTERM}).si_pid == rank:
                os._exit(0)
