"""Which images, in which order, on which rank: the same for every kind of parallelism."""

import hashlib

import torch


def epoch_order(count: int, seed: int, epoch: int, shuffle: bool) -> torch.Tensor:
    """The order of all `count` images in an epoch: int64 [count], on the CPU.

    With `shuffle` a permutation that depends on nothing but the arguments, else 0, 1, 2, ...
    """
    if not shuffle:
        return torch.arange(count)
    # Hashed: seed 1 of epoch 0 and seed 0 of epoch 1 have nothing in common.
    mixed = hashlib.sha256(f"order/{seed}/{epoch}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(mixed[:8], "little") >> 1)
    return torch.randperm(count, generator=generator)


def rank_batches(order: torch.Tensor, batch: int, rank: int, world: int) -> torch.Tensor:
    """The batches of one rank: int64 [steps, batch // world].

    Row i is `[rank::world]` of the i-th global batch of `batch` images in `order`; an
    incomplete last global batch is dropped. Raises ValueError when `batch` does not divide.
    """
    if batch % world != 0:
        raise ValueError(f"a global batch of {batch} does not divide by {world} ranks")
    steps = len(order) // batch
    return order[: steps * batch].view(steps, batch)[:, rank::world].contiguous()


def eval_batches(count: int, batch: int, rank: int, world: int) -> list[torch.Tensor]:
    """The evaluation batches of one rank, int64 [at most batch] each: every `world`-th of the
    batches of `count` images in order, so that a batch is the same for any number of ranks.

    Over all ranks each image comes once; only the very last batch may be shorter; a rank
    may have none.
    """
    everything = torch.arange(count)
    return [
        everything[start : start + batch] for start in range(rank * batch, count, world * batch)
    ]
