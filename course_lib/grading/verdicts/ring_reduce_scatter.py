"""`ring_reduce_scatter`: partial sums travel round the ring, and each chunk ends where it belongs."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want
from course_lib.grading.ring_worlds import (
    CLOSED,
    chunk_of,
    communicated,
    held,
    members,
    messages_at_most,
    total,
    with_again,
    world,
)

EXERCISE = Exercise(
    id="ring_reduce_scatter",
    lab="02_collectives",
    order=3,
    symbol="ring_reduce_scatter",
    title="Reduce-scatter round a ring",
    minutes=30,
    difficulty=4,
    importance=5,
    lines=12,
    points={"values": 2.0, "bytes": 1.0},
    graded="Values, at 1-4 ranks (hidden: 5, 6, 8), in groups that are not the world, for sizes that n "
    "does not divide or that are smaller than n: the r-th rank of the group returns the r-th chunk "
    "(torch.tensor_split) of the sum, 1-D; the input stays as it was, and later calls leave what the first "
    "returned; nothing is left in flight. Bytes: a rank sends at most n-1 messages of at most ceil(S/n) "
    "elements each, S = elements of the tensor.",
    closed=CLOSED,
    signature="(tensor, group)",
    hints=(
        "Follow one chunk. Some rank starts with its own copy and sends it on; every rank it passes adds its "
        "own; after n-1 steps all n are in it. Where must it start to end on rank r?",
        "The partial sum of chunk c starts on rank c+1 and moves to c+2, ..., c. So in its first step rank r "
        "sends chunk r-1, then what it received and added to: chunk r-2, r-3, ..., all mod n.",
        "chunks = tensor.reshape(-1).tensor_split(n). Start with a copy of chunks[r - 1]. n-1 times: send it "
        "to the next rank while you receive into an empty tensor of the size of the chunk one lower; add "
        "your own chunk of that number; that is the new partial sum.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Sizes that n divides, that it does not, and fewer elements than ranks."""
    found = [
        world(1, seed, [5]),
        world(2, seed, [6]),
        world(4, seed, [3, 4]),
        world(3, seed, [10]),
        world(4, seed, [3]),
        world(4, seed, [5], groups=[[0, 3], [1, 2]]),
        world(3, seed, [7], dtype="float32"),
        world(3, seed, [8], again=True),
    ]
    if hidden:
        found += [
            world(5, seed, [4, 3]),
            world(6, seed, [11], groups=[[0, 2, 3, 5]]),
            world(8, seed, [21]),
            world(3, seed, [150_001]),
        ]
    return found


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's tensor."""
    return {"tensor": held(case, rank)}


def oracle(case: Case) -> dict[str, Any]:
    """Chunk r of the sum on the r-th rank of the group; its own chunk if nothing was communicated."""
    ranks = range(case.world_size)

    def chunks(of: list[Array]) -> list[Array]:
        rings = [members(case, r) for r in ranks]
        return [
            chunk_of(full, ring.index(r), len(ring)) if ring else full.reshape(-1)
            for r, ring, full in zip(ranks, rings, of, strict=True)
        ]

    own = [held(case, r) for r in ranks]
    sums = [total(case, r) for r in ranks]
    two = [held(case, r) + held(case, (members(case, r) or [r])[_before(case, r)]) for r in ranks]
    near = {"only the chunk of the rank before was added, not that of all": chunks(two)}
    near = near if case.world_size > 2 else {}
    return with_again(case, "chunk", Want(chunks(sums), per_rank=True, alone=chunks(own), near=near))


def _before(case: Case, rank: int) -> int:
    ring = members(case, rank) or [rank]
    return ring.index(rank) - 1


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Number and size of the messages."""
    del want
    if "again" in case.params:
        return []
    numel = int(np.prod(case.params["shape"]))
    gate = communicated(case, got, lambda n: (n - 1) * numel)
    return gate or [
        messages_at_most(case, got, numel=numel, too_many="An all_reduce of which a chunk is kept?")
    ]
