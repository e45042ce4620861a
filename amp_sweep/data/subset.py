"""Which images a part of a data set is made of: the same ones in every run. No torch here."""

import numpy as np
from numpy.typing import NDArray

from amp_sweep.data.prepared import DataError, PartName

# Not a run's seed: all seeds of a sweep train on the same images.
_SEED = 1


def choose(name: str, part: PartName, available: int, wanted: int | None) -> NDArray[np.int64]:
    """Indices of the first `wanted` images of a fixed shuffled order, or of all images.

    They come in the data's own order, so that asking for all of them changes nothing, and
    those of a smaller number are among those of a larger one. Classes are balanced as far
    as chance has it. Raises DataError when there are fewer.
    """
    if wanted is None:
        return np.arange(available, dtype=np.int64)
    if wanted > available:
        raise DataError(f"data.{part}_images={wanted}: data={name} has {available} {part} images")
    if wanted < 1:
        raise DataError(f"data.{part}_images={wanted}: must be at least 1")
    order = np.random.Generator(np.random.PCG64(_SEED)).permutation(available)
    return np.sort(order[:wanted]).astype(np.int64)
