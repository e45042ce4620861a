"""Order of the images: the same for every kind of parallelism."""

import pytest
import torch

from amp_sweep.data import epoch_order, eval_batches, rank_batches, training_steps


def test_a_shuffled_order_is_a_permutation() -> None:
    order = epoch_order(1000, seed=0, epoch=0, shuffle=True)
    assert order.dtype == torch.int64
    assert order.device.type == "cpu"
    assert order.sort().values.tolist() == list(range(1000))
    assert order.tolist() != list(range(1000))


def test_the_order_depends_on_seed_and_epoch_and_nothing_else() -> None:
    torch.manual_seed(1)
    first = epoch_order(100, 3, 5, True)
    torch.manual_seed(2)
    assert torch.equal(first, epoch_order(100, 3, 5, True))
    others = [epoch_order(100, s, e, True) for s, e in [(5, 3), (3, 6), (4, 5), (4, 4), (35, 0)]]
    assert not any(torch.equal(first, other) for other in others)


def test_asking_for_an_order_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    epoch_order(100, 0, 0, True)
    assert torch.equal(before, torch.get_rng_state())


def test_without_shuffling_the_order_is_the_datas_own() -> None:
    assert epoch_order(5, 1, 2, False).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_the_ranks_together_train_on_each_global_batch_once(world: int) -> None:
    order = epoch_order(100, 0, 0, True)
    ranks = [rank_batches(order, 12, rank, world) for rank in range(world)]
    assert all(rank.shape == (8, 12 // world) for rank in ranks)
    for step in range(8):
        together = torch.cat([rank[step] for rank in ranks]).tolist()
        assert sorted(together) == sorted(order[12 * step : 12 * (step + 1)].tolist())
        assert len(set(together)) == 12


def test_a_rank_takes_every_world_th_image_of_the_global_batch() -> None:
    order = torch.arange(100, 113)
    assert rank_batches(order, 6, 1, 3).tolist() == [[101, 104], [107, 110]]


def test_a_batch_that_does_not_divide_by_the_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="64 does not divide by 3"):
        rank_batches(torch.arange(100), 64, 0, 3)


def test_fewer_images_than_a_batch_make_no_step() -> None:
    assert rank_batches(torch.arange(5), 6, 0, 2).shape == (0, 3)
    assert training_steps(5, 6) == 0


def test_the_steps_of_an_epoch_are_counted_without_the_incomplete_batch() -> None:
    assert training_steps(1437, 64) == len(rank_batches(torch.arange(1437), 64, 0, 1)) == 22


@pytest.mark.parametrize("world", [1, 2, 3, 20])
def test_1001_test_images_are_evaluated_once_each_for_any_number_of_ranks(world: int) -> None:
    ranks = [eval_batches(1001, 64, rank, world) for rank in range(world)]
    seen = torch.cat([batch for rank in ranks for batch in rank])
    assert sorted(seen.tolist()) == list(range(1001))
    alone = {tuple(batch.tolist()) for batch in eval_batches(1001, 64, 0, 1)}
    assert {tuple(batch.tolist()) for rank in ranks for batch in rank} == alone


def test_evaluation_batch_i_goes_to_rank_i_modulo_world() -> None:
    batches = eval_batches(10, 3, 1, 2)
    assert [batch.tolist() for batch in batches] == [[3, 4, 5], [9]]
    assert eval_batches(3, 3, 1, 2) == []
