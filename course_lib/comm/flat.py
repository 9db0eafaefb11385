"""The two collectives on flat vectors that n ranks split evenly: bring the shards together, sum and scatter.

torch renamed both in 2.13; either spelling works here, and one rank alone communicates nothing.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def all_gather_flat(
    full: Tensor, shard: Tensor, group: dist.ProcessGroup | None = None, *, async_op: bool = False
) -> dist.Work | None:
    """Fill `full` [n * S] on every rank with all ranks' shards [S]; a shard may be its slice of `full`.

    Communication: one all_gather of S elements; with one rank a copy.
    """
    if dist.get_world_size(group) == 1:
        if full.data_ptr() != shard.data_ptr():
            full.copy_(shard)
        return None
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before torch 2.13
    work: dist.Work | None = gather(full, shard, group=group, async_op=async_op)
    return work


def reduce_scatter_flat(
    shard: Tensor, full: Tensor, group: dist.ProcessGroup | None = None, *, async_op: bool = False
) -> dist.Work | None:
    """Fill `shard` [S] with this rank's part of the sum over ranks of `full` [n * S].

    Communication: one reduce_scatter of n * S elements; with one rank a copy.
    """
    if dist.get_world_size(group) == 1:
        shard.copy_(full)
        return None
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    work: dist.Work | None = scatter(shard, full, group=group, async_op=async_op)
    return work
