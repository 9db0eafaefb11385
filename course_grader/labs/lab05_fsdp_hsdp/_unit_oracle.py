"""What a chain of units must compute, move and hold when it is sharded: `unit_chain` asks it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_grader.inside.programs.lab05 import SHARD, dtype_of, loss_gradient, owner_at, toy_units
from course_grader.types import Array, Case, rng

SAMPLES = 2  # of a rank


def fsdp_case(
    n: int, seed: int, kinds: Sequence[str], *, width: int = 47, placement: str = "shards", **params: Any
) -> Case:
    """A case of n ranks and units of these kinds."""
    odd = [kind for kind in dict.fromkeys(kinds) if kind != "layer"]
    words = f", {', '.join(odd)} among them" if odd else ""
    more = "".join(f", {name} {value}" for name, value in params.items())
    return Case(
        world_size=n,
        seed=seed,
        params={"kinds": list(kinds), "width": width, "placement": placement, **params},
        label=f"{n} rank{'s' * (n > 1)}, {len(kinds)} units of width {width}{words}{more}",
    )


def item(case: Case) -> int:
    """Bytes of an element."""
    return np.dtype(dtype_of(case.params)).itemsize


def shape_of(case: Case, index: int) -> tuple[int, bool]:
    """Number of a unit's parameters, and whether it trains."""
    return _shape_of(case.params["kinds"][index], case.params["width"])


@cache
def _shape_of(kind: str, width: int) -> tuple[int, bool]:
    (unit,) = toy_units({"kinds": [kind], "width": width})
    return unit.numel, unit.trains


# ---- data


def flats(case: Case) -> list[Array]:
    """The parameters of every unit, end to end; order one."""
    draw = rng(case, 1000)
    width = case.params["width"]
    spread = 1 / np.sqrt(width)
    shapes = [shape_of(case, i)[0] for i in range(len(case.params["kinds"]))]
    return [draw.normal(0.1, spread, numel).astype(dtype_of(case.params)) for numel in shapes]


def shard_of(case: Case, index: int, flat: Array, rank: int) -> Array:
    """What a rank keeps of a unit's vector."""
    n = case.world_size
    if case.params["placement"] == "owners":
        return flat if owner_at(index, n) == rank else flat[:0]
    size = -(-len(flat) // n)
    return np.pad(flat, (0, n * size - len(flat)))[rank * size : (rank + 1) * size]


def fsdp_inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's shards and samples."""
    shards = {f"{SHARD}{i}": shard_of(case, i, flat, rank).copy() for i, flat in enumerate(flats(case))}
    return {**shards, **samples(case, rank)}


def samples(case: Case, rank: int) -> dict[str, Array]:
    """This rank's samples and their targets."""
    draw, shape = rng(case, rank), (SAMPLES, case.params["width"])
    return {name: draw.normal(size=shape).astype(dtype_of(case.params)) for name in ("x", "y")}


# ---- values


@dataclass(frozen=True)
class Local:
    """What each rank's own samples give in one process: its output; the gradient of its loss, by unit."""

    outputs: list[Array]
    grads: list[list[Array]]


def run_alone(case: Case, *, backward: bool = True) -> Local:
    """Run the chain on every rank's samples, one after the other, by autograd over the whole chain."""
    units = toy_units(case.params)
    for unit, flat in zip(units, flats(case), strict=True):
        unit.full = torch.from_numpy(flat)
    found = Local([], [])
    for rank in range(case.world_size):
        arrays = {name: torch.from_numpy(a) for name, a in samples(case, rank).items()}
        x = arrays["x"]
        for unit in units:
            x = unit.forward(x)
        found.outputs.append(x.numpy())
        grad: Tensor | None = loss_gradient(arrays, x)
        grads: list[Array] = []
        for unit in reversed(units) if backward else ():
            assert grad is not None
            grad, flat_grad = unit.backward(grad)
            grads.insert(0, np.zeros(unit.numel) if flat_grad is None else flat_grad.numpy())
        found.grads.append(grads)
    return found


# ---- bytes


def unit_bytes(case: Case, index: int) -> int:
    """Bytes of a unit's whole vector, padding included."""
    numel, n = shape_of(case, index)[0], case.world_size
    return item(case) * (numel if case.params["placement"] == "owners" else n * -(-numel // n))


def sizes(case: Case, *, trained_only: bool = False) -> list[int]:
    """Bytes of the whole vectors of all units."""
    indices = range(len(case.params["kinds"]))
    return [unit_bytes(case, i) for i in indices if shape_of(case, i)[1] or not trained_only]


def turns(case: Case, phase: str, *, kept_last: bool = False, reduces: bool = False) -> list[tuple[str, int]]:
    """Marks at which units compute, in order, and the bytes that must come for each (kept last: none).

    reduces: and those of its gradient, which is reduced behind it.
    """
    every = sizes(case)
    come = [0 if kept_last and i == len(every) - 1 else size for i, size in enumerate(every)]
    found = [
        (f"{phase} {i}", size + (every[i] if reduces and shape_of(case, i)[1] else 0))
        for i, size in enumerate(come)
    ]
    return found if phase == "forward" else found[::-1]


def least_backward(case: Case, *, kept_last: bool = False) -> int:
    """Bytes that a backward needs: parameters down to the first unit that trains, and gradients."""
    every = range(len(case.params["kinds"]))
    first = next((i for i in every if shape_of(case, i)[1]), len(every))
    needed = sizes(case)[first : len(every) - kept_last]
    return sum(needed) + sum(sizes(case, trained_only=True))


# ---- memory


def allowed(case: Case, num_vectors: int) -> int:
    """Bytes of so many vectors of the largest unit, all activations, and a quarter of the smallest unit."""
    every = sizes(case)
    activations = item(case) * SAMPLES * int(case.params["width"]) * (len(every) + 1)
    return num_vectors * max(every) + activations + min(every) // 4


def shard_gradients(case: Case, first: int = 0) -> int:
    """Bytes of the gradients of this rank's shards of unit `first` and the later ones."""
    found = [unit_bytes(case, i) for i in range(first, len(case.params["kinds"])) if shape_of(case, i)[1]]
    return sum(found) // case.world_size
