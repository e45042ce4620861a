"""Learnable images made on the fly, any number of any size. No torch here."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from amp_sweep.data.arrays import Part, Source
from amp_sweep.data.prepared import PARTS, DataError, PartName
from amp_sweep.data.store import Images, Labels

TRAIN_IMAGES = 2048
TEST_IMAGES = 512
CLASSES = 10
SOURCE_SIZE = 32

# The images are the same for all seeds of a sweep: a run's seed governs its weights and the
# order of the images only.
_SEED = 20
_CHUNK = 512

# Chosen so that a small network passes 0.9 within a few epochs, and not within the first.
_CONTRAST = 16.0
_NOISE = 64.0
_MAX_FREQUENCY = 3


def synthetic(
    train_images: int | None, test_images: int | None, classes: int | None, size: int | None
) -> Source:
    """RGB squares of `size` pixels: a class is a smooth periodic pattern, an image its pattern
    shifted by up to an eighth of its side, at some contrast, under noise.

    Images and classes of a smaller set are the first ones of a larger set. Raises DataError.
    """
    counts = (
        TRAIN_IMAGES if train_images is None else train_images,
        TEST_IMAGES if test_images is None else test_images,
    )
    classes = CLASSES if classes is None else classes
    size = SOURCE_SIZE if size is None else size
    for key, value, least in (
        ("train_images", counts[0], 1),
        ("test_images", counts[1], 1),
        ("classes", classes, 2),
        ("source_size", size, 4),
    ):
        if value < least:
            raise DataError(f"data.{key}={value}: must be at least {least}")

    def part(name: PartName, count: int) -> Part:
        return Part(count, lambda _: _chunks(name, count, classes, size))

    return Source(
        name="synthetic",
        classes=tuple(f"class{index}" for index in range(classes)),
        train=part("train", counts[0]),
        test=part("test", counts[1]),
    )


def _pattern(label: int, size: int) -> NDArray[np.float32]:
    """The pattern of a class, [size, size, 3], mean 0 and standard deviation 1 per channel."""
    random = np.random.Generator(np.random.PCG64([_SEED, 0, label]))
    frequencies = np.arange(-_MAX_FREQUENCY, _MAX_FREQUENCY + 1)
    weights = random.normal(size=(len(frequencies), len(frequencies), 3))
    phases = random.uniform(0, 2 * np.pi, size=weights.shape)
    # Low frequencies dominate, so that it is smooth.
    down, right = np.meshgrid(frequencies, frequencies, indexing="ij")
    weights /= (1.0 + down**2 + right**2)[..., None]
    place = 2 * np.pi * np.arange(size) / size
    waves = np.exp(1j * np.outer(place, frequencies))
    spectrum = weights * np.exp(1j * phases)
    pattern = np.einsum("yf,fgc,xg->yxc", waves, spectrum, waves).real
    pattern -= pattern.mean(axis=(0, 1))
    pattern /= pattern.std(axis=(0, 1))
    return np.asarray(pattern, dtype=np.float32)


def _chunks(part: PartName, count: int, classes: int, size: int) -> Iterator[tuple[Images, Labels]]:
    patterns = np.stack([_pattern(label, size) for label in range(classes)])
    reach = size // 8
    # Its length depends on nothing but the images' size: a smaller set is a larger one's start.
    length = max(1, min(_CHUNK, 2**23 // (size * size * 3)))
    for start in range(0, count, length):
        random = np.random.Generator(np.random.PCG64([_SEED, 1 + PARTS.index(part), start]))
        kept = min(length, count - start)
        labels = np.arange(start, start + kept, dtype=np.int64) % classes
        shifts = random.integers(-reach, reach + 1, size=(2, length, 1))[:, :kept]
        contrast = random.uniform(0.5, 1.5, size=(length, 1, 1, 1))[:kept].astype(np.float32)
        # Drawn last and in order, so that it need not be drawn for images that are not kept.
        noise = random.standard_normal((kept, size, size, 3), dtype=np.float32)
        places = (np.arange(size) + shifts) % size  # [2, kept, size]
        images = patterns[labels[:, None, None], places[0][:, :, None], places[1][:, None, :]]
        images = 128.0 + _CONTRAST * contrast * images + _NOISE * noise
        yield np.clip(np.rint(images), 0, 255).astype(np.uint8), labels
