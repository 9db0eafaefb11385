"""What techniques that shard the model share."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.parallel._sharded import clip_sharded_norm_
from course_lib.ranks import run_ranks


def gradients(rank: int) -> Tensor:
    return torch.arange(1.0, 4.0, dtype=torch.float64) * (rank + 1)


def clip(max_norm: float) -> tuple[Tensor, Tensor]:
    shard, empty = nn.Parameter(torch.zeros(3, dtype=torch.float64)), nn.Parameter(torch.empty(0))
    shard.grad, empty.grad = gradients(dist.get_rank()), torch.empty(0)
    norm = clip_sharded_norm_([shard, empty, nn.Parameter(torch.empty(2))], max_norm)
    return norm, shard.grad


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_the_norm_is_that_of_all_shards(world_size: int, max_norm: float) -> None:
    whole = [nn.Parameter(torch.zeros(3, dtype=torch.float64)) for _ in range(world_size)]
    for rank, param in enumerate(whole):
        param.grad = gradients(rank)
    want = nn.utils.clip_grad_norm_(whole, max_norm)
    for (norm, grad), param in zip(run_ranks(clip, world_size, max_norm), whole, strict=True):
        torch.testing.assert_close(norm, want)
        torch.testing.assert_close(grad, param.grad)
