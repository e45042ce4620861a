"""What the unit tests share: little threads, and torch's global switches as they were."""

from collections.abc import Callable, Iterator

import pytest
import torch

from amp_sweep import config
from amp_sweep.config import RunConfig

Make = Callable[..., RunConfig]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Small tensors on shared cores: more threads only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def torch_switches() -> Iterator[None]:
    """Give the process back with the switches it had."""
    before = (
        torch.backends.cuda.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.benchmark,
        torch.get_num_threads(),
    )
    yield
    torch.backends.cuda.matmul.allow_tf32 = before[0]
    torch.backends.cudnn.allow_tf32 = before[1]
    torch.backends.cudnn.benchmark = before[2]
    torch.set_num_threads(before[3])


# The bare cell, written down here and not taken from conf/.
BARE = {
    "model.name": "alexnet",
    "model.width": 0.25,
    "data.name": "digits",
    "parallel.name": "none",
    "precision.name": "fp32",
    "optimizer.name": "adamw",
    "optimizer.lr": 1e-3,
    "scheduler.name": "cosine",
    "track.name": "tensorboard",
}


def make_config(**changes: object) -> RunConfig:
    """The bare cell with changes; `data__root="x"` stands for `data.root=x`."""
    values = config.to_dict(RunConfig())
    named = {name.replace("__", "."): value for name, value in changes.items()}
    for name, value in {**BARE, **named}.items():
        section, _, field = name.rpartition(".")
        place = values[section] if section else values
        assert field in place, name
        place[field] = value
    return config.normalise(config.from_dict(values))


@pytest.fixture
def make() -> Make:
    return make_config
