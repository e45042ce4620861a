"""A folder of made-up photographs: as large as wanted, made once, by all cores.

The pictures are noise with the spectrum of natural images (amplitude over frequency), so that
files are as large as those of real photographs. Few of them are made anew; each file is another
part of one of them, mirrored or not, at its own brightness, compressed for itself.
"""

import json
import multiprocessing
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import track

CLASSES = 10
QUALITY = 85
_JOB = 250  # files
_PICTURES = 5  # that they are parts of


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
    """Fill `root` with train/ and test/, unless that has been done."""
    done = root / "made.json"
    wanted = json.dumps(asdict(folder))
    if done.is_file() and done.read_text(encoding="utf-8") == wanted:
        return
    shutil.rmtree(root, ignore_errors=True)
    for part in ("train", "test"):
        for label in range(CLASSES):
            (root / part / f"class{label}").mkdir(parents=True)
    jobs = [
        (root / part, start, min(_JOB, count - start), folder.size)
        for part, count in (("train", folder.train), ("test", folder.test))
        for start in range(0, count, _JOB)
    ]
    cores = len(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(cores, len(jobs)), context) as executor:
        coming = [executor.submit(_files, *job) for job in jobs]
        words = f"making {folder.train + folder.test:,} images"
        for future in track(as_completed(coming), words, len(coming), console=Console(stderr=True)):
            future.result()
    done.write_text(wanted, encoding="utf-8")


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
