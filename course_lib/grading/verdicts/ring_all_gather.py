"""`ring_all_gather`: every rank passes on the chunk that came last, until all have all."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want, rng
from course_lib.grading.ring_worlds import (
    CLOSED,
    cast,
    chunk_of,
    communicated,
    members,
    messages_at_most,
    with_again,
    world,
)

EXERCISE = Exercise(
    id="ring_all_gather",
    lab="02_collectives",
    order=4,
    symbol="ring_all_gather",
    title="All-gather round a ring",
    minutes=20,
    difficulty=3,
    importance=5,
    lines=10,
    points={"values": 1.5, "bytes": 1.0},
    graded="Values, at 1-4 ranks (hidden: 5, 6, 8), in groups that are not the world, for sizes that n "
    "does not divide or that are smaller than n: every rank returns the 1-D tensor of `numel` elements "
    "whose chunks (torch.tensor_split) the ranks hold; the input stays as it was, and later calls leave "
    "what the first returned; nothing is left in flight. Bytes: a rank sends at most n-1 messages of at "
    "most ceil(numel/n) elements each.",
    closed=CLOSED,
    signature="(chunk, numel, group)",
    hints=(
        "Nothing is added here. In each step every rank sends one chunk and receives one it does not have "
        "yet. Which chunk can it send that its neighbour lacks?",
        "The one that arrived last (at first its own). In step s rank r sends chunk r-s and receives chunk "
        "r-s-1, mod n.",
        "full = chunk.new_empty(numel); its tensor_split(n) are views, so you can copy your chunk into its "
        "place and receive the others directly into theirs.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Sizes that n divides, that it does not, and fewer elements than ranks."""
    found = [
        world(1, seed, [5]),
        world(2, seed, [6]),
        world(4, seed, [12]),
        world(3, seed, [10]),
        world(4, seed, [3]),
        world(4, seed, [5], groups=[[0, 3], [1, 2]]),
        world(3, seed, [7], dtype="float32"),
        world(3, seed, [8], again=True),
    ]
    if hidden:
        found += [
            world(5, seed, [12]),
            world(6, seed, [11], groups=[[0, 2, 3, 5]]),
            world(8, seed, [21]),
            world(3, seed, [150_001]),
        ]
    return found


def _full(case: Case, rank: int) -> Array:
    """The whole tensor of the group of `rank`."""
    draw = rng(case, 1000 + min(members(case, rank) or [rank]))
    return cast(case, draw.standard_normal(case.params["shape"]))


def _chunk(case: Case, rank: int) -> Array:
    ring = members(case, rank)
    return chunk_of(_full(case, rank), ring.index(rank), len(ring)) if ring else _full(case, rank)


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's chunk."""
    return {"chunk": _chunk(case, rank)}


def oracle(case: Case) -> dict[str, Any]:
    """The whole tensor; `near` the orders in which chunks arrive."""
    ranks = range(case.world_size)
    rings = [members(case, r) or [r] for r in ranks]

    def ordered(direction: int) -> list[Array]:
        """Chunks one after the other as they arrive: own, then that of the rank before (-1) or after."""
        return [
            np.concatenate(
                [_chunk(case, ring[(ring.index(r) + direction * i) % len(ring)]) for i in range(len(ring))]
            )
            for r, ring in zip(ranks, rings, strict=True)
        ]

    words = "chunks are put together in the order in which they arrive, not by their number"
    near = {words: ordered(-1), words + ".": ordered(1)} if case.world_size > 1 else {}
    return with_again(case, "full", Want([_full(case, r) for r in ranks], per_rank=True, near=near))


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Number and size of the messages."""
    del want
    if "again" in case.params:
        return []
    numel = case.params["shape"][0]
    return communicated(case, got, lambda n: (n - 1) * numel) or [messages_at_most(case, got, numel=numel)]
