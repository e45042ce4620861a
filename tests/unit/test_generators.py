"""Random numbers go on as if nothing had been."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from amp_sweep import checkpoint, generators

CPU = [torch.device("cpu")]


def draw() -> tuple[float, ...]:
    """From each generator, also what it keeps for the next call."""
    return (
        torch.rand(1).item(),
        random.random(),
        random.gauss(),
        float(np.random.rand()),
        float(np.random.randn()),
    )


def test_what_is_drawn_inside_is_drawn_again_outside() -> None:
    random.gauss(), np.random.randn()  # each makes two and keeps one
    with generators.unchanged(CPU):
        inside = draw()
        for _ in range(1000):
            draw()
    assert draw() == inside != draw()
    with pytest.raises(ArithmeticError), generators.unchanged(CPU):
        inside = draw()
        raise ArithmeticError
    assert draw() == inside


@pytest.mark.parametrize("seed", [3, 2**40 + 3])
def test_a_seed_decides_pythons_and_numpys_numbers(seed: int) -> None:
    found = []
    for _ in range(2):
        generators.seed_others(seed)
        found.append(draw()[1:])
    assert found[0] == found[1]


def test_states_come_back_from_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    checkpoint.save(path, {"fingerprint": "f", "generators": [generators.states(CPU)]})
    expected = draw()
    (states,) = checkpoint.load(path, "f")["generators"]
    generators.restore(CPU, states)
    assert draw() == expected


def test_a_checkpoint_of_an_earlier_version_leaves_what_it_does_not_hold() -> None:
    states = generators.states(CPU)
    first, others = draw()[0], (random.getstate(), np.random.get_state()[2])
    generators.restore(CPU, {"cpu": states["cpu"], "cuda": []})
    assert (random.getstate(), np.random.get_state()[2]) == others
    assert torch.rand(1).item() == first
