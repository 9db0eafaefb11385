"""Worlds of lab 02, as the judge sees them: who is in which group, and who holds what.

For collectives made of sends and receives. Sizes are in elements of the tensor's dtype,
so float32 sent as float64 is twice the elements. A tensor of S elements is cut into n chunks as
`torch.tensor_split` (and `np.array_split`) cuts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from course_grader.exercise import Array, Case, Expected, rng


def collective_case(
    world_size: int,
    seed: int,
    shape: Sequence[int],
    groups: Sequence[Sequence[int]] = (),
    dtype: str = "float64",
    **params: Any,
) -> Case:
    """Return a case whose ranks hold tensors of `shape`; `groups` (none: the world) work side by side.

    again=True: the answer is called several times. Only values are judged then, so nothing is traced.
    """
    size = f"{prod(shape):,}" if len(shape) < 2 else " x ".join(map(str, shape))
    size += " element" + "s" * (prod(shape) != 1)
    who = f"{world_size} rank{'s' * (world_size > 1)}"
    among = f", group{'s' * (len(groups) > 1)} {' and '.join(map(str, groups))}" if groups else ""
    at = f", root {params['root']}" if "root" in params else ""
    size += f" of {dtype}" * (dtype != "float64") + ", called again" * ("again" in params)
    return Case(
        world_size=world_size,
        seed=seed,
        params={"shape": list(shape), "groups": [list(g) for g in groups], "dtype": dtype, **params},
        label=f"{who}{among}{at}, {size}",
        trace="again" not in params,
    )


def members(case: Case, rank: int) -> list[int]:
    """Global ranks of the group of `rank`; empty if it is in none."""
    groups = case.params["groups"] or [list(range(case.world_size))]
    return next((list(group) for group in groups if rank in group), [])


def rank_input(case: Case, rank: int) -> Array:
    """The tensor `rank` starts with: rank-distinct, of order one."""
    return cast(case, rng(case, rank).standard_normal(case.params["shape"]))


def cast(case: Case, values: Array) -> Array:
    """Values in the case's dtype; in float32 they are 64ths, so that sums are exact in any order."""
    narrow = case.params["dtype"] == "float32"
    return np.asarray(np.round(values * 64) / 64 if narrow else values, case.params["dtype"])


def total(case: Case, rank: int) -> Array:
    """The sum of the tensors of the group of `rank`; its own if it is in none."""
    ring = members(case, rank) or [rank]
    return np.asarray(np.sum([rank_input(case, r) for r in ring], axis=0))


def chunk_of(full: Array, place: int, n: int) -> Array:
    """Chunk `place` of n, 1-D."""
    return np.array_split(full.reshape(-1), n)[place]


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def with_again(case: Case, name: str, want: Expected) -> dict[str, Expected]:
    """Each rank's result; in a case that calls again, also those for 7, 5 and 11 times as much."""
    if "again" not in case.params:
        return {name: want}
    first, second, third, fourth = ([k * value for value in want.value] for k in (1, 7, 5, 11))
    written_over = (
        "a later call writes into what an earlier one returned: return a tensor of its own each time"
    )
    near = {
        written_over: second,
        f"{written_over} (the third)": third,
        f"{written_over} (the fourth)": fourth,
    }
    added = "the sums of an earlier call are still in it: keep nothing between calls"
    return {
        name: replace(want, mistakes={**want.mistakes, **near}),
        f"{name} of a second call": Expected(
            second,
            per_rank=True,
            mistakes={
                added: [a + b for a, b in zip(first, second, strict=True)],
                "it is what an earlier call returned: keep nothing between calls": first,
            },
        ),
        f"{name} of a third call": Expected(third, per_rank=True),
        f"{name} of a fourth call": Expected(fourth, per_rank=True),
    }
