"""Lay tensors one after the other in a flat vector, pad it, and cut it evenly over ranks.

Sharding a model tensor by tensor would leave ranks with unequal parts and many small messages. In one flat
vector of n equal shards a single all_gather brings all tensors back, as views without a copy, and a single
reduce_scatter averages all their gradients. Labs 04 and 05; `parallel/zero` and `parallel/fsdp` build on
it. torch's FSDP1 used such a FlatParameter; FSDP2 (`fully_shard`) cuts each tensor along dim 0 instead,
which copies once more and keeps a dtype and a requires_grad for each tensor.

A `Piece` says which elements of a whole tensor some rank holds, so that saved shards can be read by any
number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TypedDict

import torch
import torch.distributed as dist
from torch import Tensor


class Piece(TypedDict):
    """Elements offset .. offset + len(values) of a flattened tensor of this shape, as plain data."""

    shape: list[int]
    offset: int
    values: Tensor


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

    def pieces(self, local: Tensor, start: int) -> dict[int, Piece]:
        """Return what `local` = flat[start : start + len] holds of each tensor, by its index; copied."""
        return {
            index: Piece(shape=list(self.shapes[index]), offset=offset, values=local[part].clone())
            for index, offset, part in self.overlaps(start, start + local.numel())
        }

    def load_(self, local: Tensor, start: int, sources: Mapping[int, Sequence[Piece]]) -> None:
        """Fill `local` = flat[start : start + len] from pieces of the tensors, cut however they were.

        Raises: ValueError if pieces leave elements of a tensor uncovered.
        """
        for index, offset, part in self.overlaps(start, start + local.numel()):
            _fill_from_pieces(local[part], offset, sources.get(index, ()))


def whole(tensor: Tensor) -> Piece:
    """Return the piece that is all of a tensor."""
    return Piece(shape=list(tensor.shape), offset=0, values=tensor.detach().reshape(-1))


def join_pieces(pieces: Sequence[Piece]) -> Tensor:
    """Return the whole tensor of which these are all the pieces."""
    shape = torch.Size(pieces[0]["shape"])
    flat = torch.empty(shape.numel(), dtype=pieces[0]["values"].dtype)
    _fill_from_pieces(flat, 0, pieces)
    return flat.view(shape)


def _fill_from_pieces(target: Tensor, offset: int, pieces: Sequence[Piece]) -> None:
    """Fill target, which is elements offset .. offset + len of a tensor."""
    end, missing = offset + target.numel(), torch.ones(target.numel(), dtype=torch.bool)
    for piece in pieces:
        first = max(offset, piece["offset"])
        last = min(end, piece["offset"] + piece["values"].numel())
        if first < last:
            values = piece["values"][first - piece["offset"] : last - piece["offset"]]
            target[first - offset : last - offset].copy_(values)
            missing[first - offset : last - offset] = False
    if missing.any():
        raise ValueError(
            f"saved pieces must cover elements {offset} .. {end - 1} of a tensor; got none for "
            f"{int(missing.sum())} of them. Load the state dicts of all ranks that saved, as one list."
        )


def check_same_tensors(
    want: Mapping[str, Sequence[int]], got: Mapping[str, Sequence[int]], what: str
) -> None:
    """Raise ValueError that says how names and shapes of a saved state differ from the model's."""
    missing = [name for name in want if name not in got and 0 not in want[name]]  # empty: in no piece
    unexpected = [name for name in got if name not in want]
    shapes = [
        f"{name} {list(got[name])} for {list(want[name])}"
        for name in want
        if name in got and list(got[name]) != list(want[name])
    ]
    found = {"missing": missing, "unexpected": unexpected, "shapes": shapes}
    text = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items() if names)
    if text:
        raise ValueError(
            f"{what} must be of this model; got {text}. Build the model as it was when it was saved."
        )


@torch.no_grad()
def clip_sharded_norm_(
    grads: Sequence[Tensor], max_norm: float, device: torch.device, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Scale shards of gradients so that the 2-norm over all ranks is at most max_norm; return it.

    Communication: one all_reduce of one float64. A NaN anywhere makes all gradients NaN, as torch's
    clip_grad_norm_ does.
    """
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for grad in grads:
        squares += grad.double().square().sum()
    if dist.get_world_size(group) > 1:
        dist.all_reduce(squares, group=group)
    norm = squares.sqrt()
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for grad in grads:
        grad.mul_(scale.to(grad.dtype))
    return norm
