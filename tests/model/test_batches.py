"""Batches: deterministic, sharded without loss, reshuffled every epoch."""

import pytest
import torch

from course_lib.model.batches import (
    epoch_batches,
    epoch_order,
    shard_batch,
    shard_slice,
    synthetic_batch,
)


def test_equal_arguments_give_equal_tokens() -> None:
    first = synthetic_batch(6, 9, 11, seed=3)
    torch.manual_seed(99)
    again = synthetic_batch(6, 9, 11, seed=3)
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.tokens, synthetic_batch(6, 9, 11, seed=4).tokens)
    assert first.tokens.shape == first.targets.shape == (6, 9)
    assert torch.equal(first.tokens[:, 1:], first.targets[:, :-1])
    assert int(first.tokens.min()) >= 0
    assert int(first.tokens.max()) < 11


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("num_samples", [0, 1, 5, 12])
def test_shards_are_disjoint_complete_and_even_to_one(num_samples: int, world_size: int) -> None:
    samples = list(range(num_samples))
    shards = [samples[shard_slice(num_samples, rank, world_size)] for rank in range(world_size)]
    assert [sample for shard in shards for sample in shard] == samples
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


def test_shard_batch_cuts_tokens_and_targets_alike() -> None:
    batch = synthetic_batch(5, 4, 11)
    shards = [shard_batch(batch, rank, 3) for rank in range(3)]
    assert [len(shard) for shard in shards] == [2, 2, 1]
    assert torch.equal(torch.cat([shard.tokens for shard in shards]), batch.tokens)
    assert torch.equal(torch.cat([shard.targets for shard in shards]), batch.targets)


def test_epochs_are_different_permutations() -> None:
    orders = [epoch_order(50, epoch, seed=5) for epoch in range(4)]
    for epoch, order in enumerate(orders):
        assert torch.equal(order.sort().values, torch.arange(50))
        assert torch.equal(order, epoch_order(50, epoch, seed=5))
        assert not any(torch.equal(order, other) for other in orders[:epoch])
    assert not torch.equal(orders[1], epoch_order(50, 0, seed=6))


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_the_ranks_shards_of_a_step_are_the_global_batch_of_that_step(world_size: int) -> None:
    data = synthetic_batch(11, 3, 19)
    whole = list(epoch_batches(data, 4, epoch=2, seed=1))
    ranks = [
        list(epoch_batches(data, 4, epoch=2, seed=1, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    assert [len(batch) for batch in whole] == [4, 4, 3]
    for step, batch in enumerate(whole):
        assert torch.equal(torch.cat([shards[step].tokens for shards in ranks]), batch.tokens)
        assert torch.equal(torch.cat([shards[step].targets for shards in ranks]), batch.targets)


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="rank=2, world_size=2"):
        shard_slice(4, 2, 2)
    with pytest.raises(ValueError, match="rank=0, world_size=0"):
        shard_slice(4, 0, 0)
    with pytest.raises(ValueError, match="seq_len=0"):
        synthetic_batch(1, 0, 5)
    with pytest.raises(ValueError, match="batch_size must be positive; got 0"):
        list(epoch_batches(synthetic_batch(2, 2, 5), 0))
