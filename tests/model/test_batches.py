"""Batches: deterministic, sharded without loss, reshuffled every epoch."""

import pytest
import torch

from course_lib.model.batches import (
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


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="rank=2, world_size=2"):
        shard_slice(4, 2, 2)
    with pytest.raises(ValueError, match="rank=0, world_size=0"):
        shard_slice(4, 0, 0)
    with pytest.raises(ValueError, match="seq_len=0"):
        synthetic_batch(1, 0, 5)
