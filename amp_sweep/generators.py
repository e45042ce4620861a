"""The random numbers that a network may draw: PyTorch's, Python's and NumPy's own."""

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch


def seed_others(seed: int) -> None:
    """Seed Python's and NumPy's: a forked process has the one at random, the other as its parent.

    PyTorch's are seeded by device (`parallel.seed_dropout`).
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # it takes no more


def states(devices: Sequence[torch.device]) -> dict[str, Any]:
    """The states of this process's generators, as values that a checkpoint may hold."""
    numpy: dict[str, Any] = dict(np.random.get_state(legacy=False))
    numpy["state"] = {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in numpy["state"].items()
    }
    return {
        "cpu": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"],
        "python": random.getstate(),
        "numpy": numpy,
    }


def restore(devices: Sequence[torch.device], before: dict[str, Any]) -> None:
    """The inverse of `states`. A checkpoint of an earlier version has PyTorch's alone."""
    if "python" in before:
        random.setstate(before["python"])
    if "numpy" in before:
        np.random.set_state(before["numpy"])
    torch.set_rng_state(before["cpu"])
    # Last: after an error on the device its calls raise.
    cuda = [device for device in devices if device.type == "cuda"]
    for device, state in zip(cuda, before["cuda"], strict=True):
        torch.cuda.set_rng_state(state, device)


@contextlib.contextmanager
def unchanged(devices: Sequence[torch.device]) -> Iterator[None]:
    """Random numbers go on after the block as if it had not been."""
    before = states(devices)
    try:
        yield
    finally:
        restore(devices, before)
