"""Arrange ranks in a grid with named axes, and give each rank the group of its line along every axis.

Each way of splitting the work is an axis: `dp_replicate` x `dp_shard` is HSDP. The last axis varies fastest,
so ranks that are neighbours along it are neighbours in a server. Lab 05. torch's DeviceMesh
(`torch/distributed/device_mesh.py`) does the same, and slices and flattens axes too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import torch.distributed as dist


def rank_to_coords(rank: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return a rank's place along each axis; the last axis varies fastest."""
    coords: dict[str, int] = {}
    for axis, size in reversed(list(sizes.items())):
        rank, coords[axis] = divmod(rank, size)
    return {axis: coords[axis] for axis in sizes}


def coords_to_rank(coords: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """Return the global rank at a place."""
    rank = 0
    for axis, size in sizes.items():
        rank = rank * size + coords[axis]
    return rank


def lines(axis: str, sizes: Mapping[str, int]) -> list[list[int]]:
    """Return the global ranks of every line along an axis: ranks that differ in that coordinate only."""
    others = [range(size) if other != axis else range(1) for other, size in sizes.items()]
    starts = (dict(zip(sizes, place, strict=True)) for place in product(*others))
    return [[coords_to_rank({**start, axis: i}, sizes) for i in range(sizes[axis])] for start in starts]


@dataclass(frozen=True)
class Mesh:
    """The grid as one rank sees it.

    sizes: ranks along each axis, slowest axis first.
    groups: this rank's line along each axis, as a process group.
    """

    sizes: dict[str, int]
    groups: dict[str, dist.ProcessGroup]

    @property
    def coords(self) -> dict[str, int]:
        """This rank's place along each axis."""
        return rank_to_coords(dist.get_rank(), self.sizes)

    def size(self, axis: str) -> int:
        """Ranks along an axis; 1 if the mesh has no such axis."""
        return self.sizes.get(axis, 1)

    def rank(self, axis: str) -> int:
        """This rank's place along an axis; 0 if the mesh has no such axis."""
        return self.coords.get(axis, 0)

    def group(self, axis: str) -> dist.ProcessGroup | None:
        """This rank's line along an axis; None if the mesh has no such axis."""
        return self.groups.get(axis)


def make_mesh(**sizes: int) -> Mesh:
    """Arrange the world: make_mesh(dp_replicate=2, dp_shard=4) is two copies of four shards.

    Communication: every rank must call it; it makes the groups of all lines, in the same order on all ranks.
    Raises: ValueError if the product of the sizes is not the world size.
    """
    world_size = dist.get_world_size()
    if not sizes or min(sizes.values()) < 1 or prod(sizes.values()) != world_size:
        raise ValueError(
            f"the sizes of a mesh must be positive and multiply to the world size {world_size}; got {sizes}. "
            f"Change the sizes or start {prod(sizes.values())} ranks."
        )
    return Mesh(dict(sizes), {axis: _own_group(axis, sizes) for axis in sizes})


def _own_group(axis: str, sizes: Mapping[str, int]) -> dist.ProcessGroup:
    if sizes[axis] == dist.get_world_size() and dist.group.WORLD is not None:
        return dist.group.WORLD
    own: dist.ProcessGroup | None = None
    for ranks in lines(axis, sizes):
        group = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            own = group
    assert own is not None, "every rank lies on one line of each axis"
    return own
