"""Lay tensors one after the other in a flat vector, pad it, and cut it evenly over ranks.

Sharding a model tensor by tensor would leave ranks with unequal parts and many small messages. In one flat
vector of n equal shards a single all_gather brings all tensors back, as views without a copy, and a single
reduce_scatter sums all their gradients. Labs 04 and 05; `parallel/zero` and `parallel/fsdp` build on it.
torch's FSDP1 used such a FlatParameter; FSDP2 (`fully_shard`) cuts each tensor along dim 0 instead, which
copies once more and keeps a dtype and a requires_grad for each tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class FlatLayout:
    """Where tensors of these shapes lie in a flat vector that `num_shards` ranks split evenly.

    Layout: tensors, then zeros up to padded_numel = num_shards * shard_numel; shard r is
    flat[r * shard_numel : (r + 1) * shard_numel]. shard_numel = ceil(numel / num_shards), at least 1.
    """

    shapes: tuple[tuple[int, ...], ...]
    num_shards: int

    @classmethod
    def of(cls, tensors: Iterable[Tensor], num_shards: int) -> FlatLayout:
        """Lay out tensors in the given order."""
        return cls(tuple(tuple(tensor.shape) for tensor in tensors), num_shards)

    @cached_property
    def sizes(self) -> list[int]:
        """Elements of each tensor."""
        return [torch.Size(shape).numel() for shape in self.shapes]

    @cached_property
    def offsets(self) -> list[int]:
        """Where each tensor begins; the last entry is where the last one ends."""
        return list(accumulate(self.sizes, initial=0))

    @property
    def numel(self) -> int:
        """Elements without padding."""
        return self.offsets[-1]

    @property
    def shard_numel(self) -> int:
        """Elements of one shard."""
        return max(1, -(-self.numel // self.num_shards))

    @property
    def padded_numel(self) -> int:
        """Elements with padding."""
        return self.num_shards * self.shard_numel

    def shard_range(self, rank: int) -> tuple[int, int]:
        """Return where the shard of the group's rank begins and ends in the flat vector."""
        return rank * self.shard_numel, (rank + 1) * self.shard_numel

    def flatten_(self, flat: Tensor, tensors: Sequence[Tensor | None]) -> None:
        """Copy the tensors (None: zeros) into `flat` [padded_numel] and zero the padding."""
        for view, tensor in zip(self.unflatten(flat), tensors, strict=True):
            if tensor is None:
                view.zero_()
            else:
                view.copy_(tensor)
        flat[self.numel :].zero_()

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """Return the tensors as views of `flat`."""
        parts = torch.split(flat[: self.numel], self.sizes) if self.sizes else ()
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def overlaps(self, start: int, stop: int) -> Iterator[tuple[int, int, slice]]:
        """Yield (tensor, offset in it, slice of flat[start:stop]) for what the range holds of each tensor."""
        for index, (offset, size) in enumerate(zip(self.offsets, self.sizes, strict=False)):
            first, last = max(start, offset), min(stop, offset + size)
            if first < last:
                yield index, first - offset, slice(first - start, last - start)


def same_memory(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors begin at the same element of the same storage; fake tensors have no address."""
    same_storage = a.untyped_storage()._cdata == b.untyped_storage()._cdata
    return same_storage and a.storage_offset() == b.storage_offset()


def all_gather_flat(
    full: Tensor, shard: Tensor, group: dist.ProcessGroup | None = None, *, async_op: bool = False
) -> dist.Work | None:
    """Fill `full` [n * S] on every rank with all ranks' shards [S]; a shard may be its slice of `full`.

    Communication: one all_gather of S elements; with one rank a copy.
    """
    if dist.get_world_size(group) == 1:
        if not same_memory(full, shard):
            full.copy_(shard)
        return None
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before torch 2.13
    work: dist.Work | None = gather(full, shard, group=group, async_op=async_op)
    return work


@dataclass(frozen=True)
class _SumOfParts:
    """An all_to_all on the way; what has come is added up when somebody waits for it."""

    work: dist.Work
    parts: Tensor  # [n, S]
    shard: Tensor

    def wait(self) -> None:
        self.work.wait()
        torch.sum(self.parts, 0, out=self.shard)


def reduce_scatter_flat(
    shard: Tensor,
    full: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    async_op: bool = False,
    by_all_to_all: bool = False,
) -> dist.Work | None:
    """Fill `shard` [S] with this rank's part of the sum over ranks of `full` [n * S].

    Communication: one reduce_scatter of n * S elements; with one rank a copy.
    by_all_to_all: send each rank its part instead, and add up what comes: the same bytes, and n * S elements
    of memory until then. On gloo, whose reduce_scatter is an all_reduce of a copy, it takes two thirds of
    the time.
    """
    if dist.get_world_size(group) == 1:
        shard.copy_(full)
        return None
    if by_all_to_all:
        parts = torch.empty_like(full).view(-1, shard.numel())
        sent = dist.all_to_all_single(parts.view(-1), full, group=group, async_op=True)
        pending = _SumOfParts(sent, parts, shard)
        if async_op:
            return cast("dist.Work", pending)
        pending.wait()
        return None
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    work: dist.Work | None = scatter(shard, full, group=group, async_op=async_op)
    return work
