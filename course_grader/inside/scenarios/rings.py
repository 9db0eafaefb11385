"""Ring collectives that the scenarios of lab 02 supply to an answer that builds on them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def supplied_reduce_scatter(tensor: Tensor, group: Any = None) -> Tensor:
    """Return this rank's chunk of the sum, 1-D; the input is unchanged."""
    chunks = tensor.detach().reshape(-1).tensor_split(dist.get_world_size(group))
    me, n = dist.get_rank(group), len(chunks)
    partial = chunks[(me - 1) % n].clone()
    for step in range(2, n + 1):
        incoming = torch.empty_like(chunks[(me - step) % n])
        _shift(partial, incoming, group)
        partial = incoming.add_(chunks[(me - step) % n])
    return partial


def supplied_all_gather(chunk: Tensor, numel: int, group: Any = None) -> Tensor:
    """Return the 1-D tensor of `numel` elements whose chunks the members hold."""
    full = chunk.new_empty(numel)
    chunks = full.tensor_split(dist.get_world_size(group))
    me, n = dist.get_rank(group), len(chunks)
    chunks[me].copy_(chunk)
    for step in range(n - 1):
        _shift(chunks[(me - step) % n], chunks[(me - step - 1) % n], group)
    return full


def supplied_all_reduce_(tensor: Tensor, group: Any = None) -> None:
    """Replace every member's tensor by the sum."""
    chunk = supplied_reduce_scatter(tensor, group)
    tensor.view(-1).copy_(supplied_all_gather(chunk, tensor.numel(), group))


def _shift(outgoing: Tensor, incoming: Tensor, group: Any) -> None:
    ring = dist.get_process_group_ranks(group or dist.group.WORLD)
    me = ring.index(dist.get_rank())
    works = [
        dist.irecv(incoming, ring[me - 1], group=group),
        dist.isend(outgoing, ring[(me + 1) % len(ring)], group=group),
    ]
    for work in works:
        assert work is not None
        work.wait()
