"""`ring_all_reduce_`: reduce_scatter, then all_gather, and no rank sends more than another."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData
from course_lib.grading.ring_worlds import (
    CLOSED,
    ceil_div,
    communicated,
    held,
    in_place,
    members,
    sent_elements,
    total,
    world,
)

EXERCISE = Exercise(
    id="ring_all_reduce",
    lab="02_collectives",
    order=5,
    symbol="ring_all_reduce_",
    title="All-reduce from two halves",
    minutes=10,
    difficulty=2,
    importance=5,
    lines=3,
    points={"values": 1.0, "bytes": 1.5},
    graded="Values, at 1-4 ranks (hidden: 5, 6, 8), in groups that are not the world, for sizes that n "
    "does not divide: every rank's tensor becomes the sum, in place (others may hold views of it), in its "
    "own shape; nothing is left in flight. Bytes: a rank sends at most 2(n-1) ceil(S/n) elements. The check "
    "supplies reduce_scatter and all_gather.",
    closed=CLOSED,
    signature="(tensor, reduce_scatter, all_gather, group)",
    hints=(
        "After a reduce_scatter each rank owns one chunk of the sum. What is missing is that "
        "the others get it.",
        "reduce_scatter(tensor, group) returns a 1-D chunk, all_gather(chunk, numel, group) a 1-D tensor. "
        "The result must be in `tensor` itself: assigning to the name changes nothing for the caller.",
        "tensor.view(-1) is a 1-D view of a contiguous tensor; .copy_ into it writes the result in place.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """The first world in which gather-then-broadcast costs more than a ring has 3 ranks; 4 come first."""
    found = [
        world(1, seed, [5]),
        world(2, seed, [7]),
        world(4, seed, [6, 4]),
        world(3, seed, [10]),
        world(4, seed, [9], groups=[[0, 2, 3]]),
        world(3, seed, [5], dtype="float32"),
        world(2, seed, []),
    ]
    if hidden:
        found += [
            world(5, seed, [4, 3]),
            world(3, seed, [5, 4]),
            world(6, seed, [13], groups=[[0, 1, 5], [2, 3, 4]]),
            world(8, seed, [43]),
            world(4, seed, [150_001]),
        ]
    return found


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's tensor."""
    return {"tensor": held(case, rank)}


def oracle(case: Case) -> dict[str, Any]:
    """The sum of the group on each of its ranks, in its memory."""
    return in_place(case, [total(case, r) for r in range(case.world_size)])


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Elements each rank sent, against the ring's bound."""
    del want
    numel = int(np.prod(case.params["shape"]))
    gate = communicated(case, got, lambda n: 2 * (n - 1) * numel)
    if gate:
        return gate
    sent = [sent_elements(case, data) for data in got]
    sizes = [len(members(case, rank)) or 1 for rank in range(case.world_size)]
    bounds = [2 * (n - 1) * ceil_div(numel, n) for n in sizes]
    over = [rank for rank, (seen, bound) in enumerate(zip(sent, bounds, strict=True)) if seen > bound]
    if not over:
        return [Part("bytes", True, f"at most {max(bounds):,} elements sent a rank")]
    rank = max(over, key=lambda r: sent[r])
    n, bound, seen = sizes[rank], bounds[rank], sent[rank]
    times = f": {seen / bound:.1f}x the bytes of a ring" if bound else ""
    text = (
        f"rank {rank} may send at most 2(n-1) ceil({numel:,}/{n}) = {bound:,} elements; it sent "
        f"{seen:,.0f}{times}{_name(seen, numel, n, len(over))}"
    )
    return [Part("bytes", False, text)]


def _name(seen: float, numel: int, n: int, num_over: int) -> str:
    """What looks like it: one rank does the work, or all send everything."""
    if abs(seen - (n - 1) * numel) <= 2 * n:
        return (
            ": gather then broadcast?" if num_over == 1 else ": does every rank send its whole tensor to all?"
        )
    if num_over < n:
        return ": reduce then broadcast along a tree?"
    return ". Once round for the sums, once for the results is enough."
