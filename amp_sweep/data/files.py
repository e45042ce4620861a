"""Many image files decoded in parallel, into the store or only looked at. No torch here."""

import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import (
    Executor,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from amp_sweep.data.children import FOR_THE_PARENT, end_with_parent, signals_held
from amp_sweep.data.decode import open_rgb, resize
from amp_sweep.data.folder import FileList, Listing
from amp_sweep.data.prepared import (
    PARTS,
    DataError,
    PartName,
    Prepared,
    Progress,
    files_path,
    images_path,
)
from amp_sweep.data.store import (
    Labels,
    SizesVary,
    Tally,
    Target,
    absorb,
    create,
    finish,
    merge,
    save_array,
)

# Processes decode small images 2.6 times as fast as threads do (CIFAR-10 as JPEG, two cores),
# and are not worth their start for fewer files than this.
_PROCESSES_FROM = 1000

# A job is no more than this: long enough to hide the overhead, short enough for progress,
# Ctrl-C and memory.
_JOB_FILES = 256
_JOB_BYTES = 2**20  # compressed
_JOB_PIXEL_BYTES = 2**26  # decoded


@dataclass(frozen=True)
class _Job:
    """Some files for one call in a worker."""

    root: Path
    paths: list[str]
    start: int  # index of the first in its part
    height: int
    width: int
    resize_to: int | None
    target: Target | None


def store_files(
    folder: Path,
    made_from: dict[str, Any],
    listing: Listing,
    keep_pixels: bool,
    image_size: int,
    progress: Progress,
) -> Prepared:
    """Decode every chosen file once; with `keep_pixels` store what comes out, else its name.

    Images of one size stay as they are, others become squares of `image_size` pixels.
    Raises DataError with the name of a file that cannot be used.
    """
    first = open_rgb(str(listing.root / listing.train.paths[0]))
    with _executor(len(listing.train) + len(listing.test)) as executor:
        try:
            size, resized_to = (first.height, first.width), None
            parts = _decode(executor, folder, listing, size, resized_to, keep_pixels, progress)
        except SizesVary:
            size, resized_to = (image_size, image_size), image_size
            parts = _decode(executor, folder, listing, size, resized_to, keep_pixels, progress)
    if not keep_pixels:
        for part in PARTS:
            names = [os.fsencode(path) for path in _files(listing, part).paths]
            save_array(files_path(folder, part), np.array(names))
    return finish(
        folder,
        made_from,
        listing.classes,
        (*size, 3),
        parts,
        stored=keep_pixels,
        root=None if keep_pixels else str(listing.root),
        resized_to=resized_to,
    )


def decode_into(images: Any, paths: list[str], resize_to: int | None) -> None:
    """Decode the files into uint8 [n, height, width, 3]; raises DataError and SizesVary."""
    height, width = images.shape[1:3]
    for index, path in enumerate(paths):
        image = open_rgb(path)
        if resize_to is not None:
            image = resize(image, resize_to)
        elif image.size != (width, height):
            raise SizesVary
        images[index] = np.asarray(image)


def _files(listing: Listing, part: PartName) -> FileList:
    return listing.train if part == "train" else listing.test


def _cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start_worker() -> None:
    warnings.simplefilter("error", Image.DecompressionBombWarning)
    end_with_parent()


@contextmanager
def _executor(count: int) -> Iterator[Executor]:
    """Workers for `count` files; on an error what has not begun is dropped."""
    executor: Executor
    if count < _PROCESSES_FROM:
        executor = ThreadPoolExecutor(_cores(), thread_name_prefix="decode")
    else:
        # Spawned: a fork would copy a process that may hold threads, and the forkserver is
        # the launcher's to start, with its own modules loaded.
        executor = ProcessPoolExecutor(
            _cores(), multiprocessing.get_context("spawn"), initializer=_start_worker
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            yield executor
    finally:
        executor.shutdown(cancel_futures=True)


def _decode(
    executor: Executor,
    folder: Path,
    listing: Listing,
    size: tuple[int, int],
    resize_to: int | None,
    keep_pixels: bool,
    progress: Progress,
) -> dict[PartName, tuple[Labels, Tally]]:
    parts: dict[PartName, tuple[Labels, Tally]] = {}
    for part in PARTS:
        files = _files(listing, part)
        target = None
        if keep_pixels:
            target = create(images_path(folder, part), (len(files), *size, 3))
        step = min(
            _JOB_FILES,
            _JOB_BYTES // max(1, files.mean_bytes),
            _JOB_PIXEL_BYTES // (3 * size[0] * size[1]),
        )
        step = max(1, step)
        jobs = [
            _Job(listing.root, files.paths[at : at + step], at, *size, resize_to, target)
            for at in range(0, len(files), step)
        ]
        tallies = _run(executor, jobs, f"decoding {part} images", len(files), progress)
        parts[part] = (files.labels, merge(tallies))
    return parts


def _run(
    executor: Executor, jobs: list[_Job], what: str, total: int, progress: Progress
) -> list[Tally]:
    tallies = []
    done = 0
    with signals_held(FOR_THE_PARENT):  # the first job starts the processes
        pending = {executor.submit(_decode_job, job): len(job.paths) for job in jobs}
    try:
        for future in as_completed(pending):
            tallies.append(future.result())
            done += pending[future]
            progress(what, done, total)
    except BrokenProcessPool as error:
        raise DataError(
            f"{what}: a process died, perhaps of too little memory; start again"
        ) from error
    finally:
        # What runs may still write: nobody may touch its file before it has ended.
        wait([future for future in pending if not future.cancel()])
    return tallies


def _decode_job(job: _Job) -> Tally:
    images = np.empty((len(job.paths), job.height, job.width, 3), np.uint8)
    decode_into(images, [f"{job.root}/{path}" for path in job.paths], job.resize_to)
    return absorb(images, job.start, job.target)
