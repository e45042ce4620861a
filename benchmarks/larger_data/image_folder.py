"""A folder of made-up photographs: as large as wanted, made once, by all cores.

The pictures are noise with the spectrum of natural images (amplitude over frequency), so that
files are as large as those of real photographs. Few of them are made anew; each file is another
part of one of them, mirrored or not, at its own brightness, compressed for itself.
"""

import contextlib
import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import track

CLASSES = 10
QUALITY = 85
PARTS = ("train", "test")
MARKER = "made.json"
_JOB = 250  # files
_PICTURES = 5  # that they are parts of
# By this name folders that were made before are known.
_MAKER = "amp_sweep benchmarks.image_folder"


@dataclass(frozen=True)
class Folder:
    """What lies in a folder of images; each is `size` pixels high and wide."""

    train: int
    test: int
    size: int


def picture(side: int, random: np.random.Generator) -> NDArray[np.float32]:
    """[side, side, 3], 0..255 but for a few pixels beyond."""
    down, right = np.fft.fftfreq(side), np.fft.rfftfreq(side)
    frequency = np.hypot(down[:, None], right[None, :])
    frequency[0, 0] = np.inf
    planes = []
    detail = random.uniform(1.2, 1.7)
    # Brightness is finer and stronger than colour.
    for contrast, steepness in ((45.0, detail), (14.0, detail + 0.3), (14.0, detail + 0.3)):
        phases = np.exp(2j * np.pi * random.uniform(size=frequency.shape))
        plane = np.fft.irfft2(phases / frequency**steepness, s=(side, side))
        planes.append(contrast * plane / plane.std())
    light, red, blue = planes
    return (128 + np.stack([light + red, light - (red + blue) / 2, light + blue], axis=-1)).astype(
        np.float32
    )


def make(root: Path, folder: Folder) -> None:
    """Fill `root` with train/ and test/, unless that has been done.

    `root` is new, empty, or of an earlier call, whose images are deleted if others are wanted or
    it was cut short. Nothing else is ever deleted. Raises SystemExit for any other folder.
    """
    wanted = asdict(folder)
    found = _marker(root)
    if found == {"made_by": _MAKER, "complete": True, **wanted}:
        return
    if found is None and root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise SystemExit(
            f"{root}: there is something that this benchmark did not make; "
            "give another folder, or move it away"
        )
    root.mkdir(parents=True, exist_ok=True)
    # Before the images: a call that is cut short leaves a folder that is known for ours.
    _mark(root, complete=False, **wanted)
    _clear(root)
    for part in PARTS:
        for label in range(CLASSES):
            (root / part / f"class{label}").mkdir(parents=True)
    jobs = [
        (root / part, start, min(_JOB, count - start), folder.size)
        for part, count in zip(PARTS, (folder.train, folder.test), strict=True)
        for start in range(0, count, _JOB)
    ]
    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(cores, len(jobs)), context) as executor:
        coming = [executor.submit(_files, *job) for job in jobs]
        words = f"making {folder.train + folder.test:,} images"
        for future in track(as_completed(coming), words, len(coming), console=Console(stderr=True)):
            future.result()
    _mark(root, complete=True, **wanted)


def _mark(root: Path, **values: int | bool) -> None:
    text = json.dumps({"made_by": _MAKER, **values})
    (root / MARKER).write_text(text, encoding="utf-8")


def _marker(root: Path) -> dict[str, Any] | None:
    """What an earlier call wrote there; None where there is no such thing."""
    try:
        found = json.loads((root / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("made_by") == _MAKER else None


def _clear(root: Path) -> None:
    """Delete the images of an earlier call. Raises SystemExit where others lie among them."""
    for folder in [root / part / f"class{label}" for part in PARTS for label in range(CLASSES)]:
        for image in folder.glob("[0-9]" * 7 + ".jpg"):
            image.unlink()
    for part in PARTS:
        try:
            for label in range(CLASSES):
                _remove_empty(root / part / f"class{label}")
            _remove_empty(root / part)
        except OSError as error:
            raise SystemExit(
                f"{error.filename}: cannot be emptied, there is something that this benchmark did "
                "not make; move it away"
            ) from error


def _remove_empty(folder: Path) -> None:
    """Remove a folder, if it is there. Raises OSError where it is not empty."""
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


def _files(part: Path, start: int, count: int, size: int) -> None:
    random = np.random.default_rng([len(part.name), start])
    pictures = [picture(2 * size, random) for _ in range(_PICTURES)]
    for number in range(start, start + count):
        top, left = random.integers(0, size, 2)
        pixels = pictures[number % _PICTURES][top : top + size, left : left + size]
        pixels = pixels[:, :: random.choice((-1, 1))] + random.uniform(-30, 30)
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        image.save(part / f"class{number % CLASSES}" / f"{number:07d}.jpg", quality=QUALITY)


def files(root: Path, part: str) -> Iterator[Path]:
    """The images of a part."""
    return (root / part).glob("class*/*.jpg")
