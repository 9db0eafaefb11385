"""`ring_all_gather`: every rank passes on the chunk that came last, until all have all."""

import numpy as np

from course_grader.labs.lab02_collectives._collective import (
    case,
    cast,
    ceil_div,
    chunk_of,
    collective,
    members,
    rings,
)
from course_grader.parts.bytes import Messages, SentAtLeast
from course_grader.types import Array, Case, Exercise, Expected, rng


def _full(case: Case, rank: int) -> Array:
    """The whole tensor of the group of `rank`."""
    draw = rng(case, 1000 + min(rings(case)[rank]))
    return cast(case, draw.standard_normal(case.params["shape"]))


def _chunk(case: Case, rank: int) -> Array:
    ring = members(case, rank)
    return chunk_of(_full(case, rank), ring.index(rank), len(ring)) if ring else _full(case, rank)


EXERCISE = Exercise(
    order=5,
    title="All-gather round a ring",
    minutes=20,
    difficulty=3,
    importance=5,
    lines=10,
    points={"values": 0.75, "bytes": 1.75},
    task="Write a function that returns the whole 1-D tensor of `numel` elements: rank r of the group gives "
    "chunk r, as `torch.tensor_split` cuts it.",
    graded={
        "values": "Every rank returns the whole tensor, chunks in the order of the ranks.",
        "bytes": "A rank sends one chunk in each of n - 1 steps.",
    },
    details="1 to 4 ranks (hidden: 5, 6, 8), groups that are not the world, sizes that n does not divide or "
    "that are smaller than n, float64 and float32. The input stays as it was, later calls leave what earlier "
    "ones returned, and each isend and irecv was waited for. Bytes: at most n - 1 messages of at most "
    "ceil(numel/n) elements each.",
    signature="(chunk, numel, group)",
    forbids=("collectives",),
    scenario=collective(
        lambda case, rank: {"tensor": _chunk(case, rank)}, returns="full", arguments=["numel", "group"]
    ),
    hints=(
        "Nothing is added here. In each step every rank sends one chunk and receives one it does not have "
        "yet. Which chunk can it send that its neighbour lacks?",
        "The one that arrived last (at first its own). In step s rank r sends chunk r-s and receives chunk "
        "r-s-1, mod n.",
        "The parts that `tensor_split` cuts from the result are views: a chunk can be received where it "
        "belongs. Which part is yours from the start, and how long is the one that comes, if n does not "
        "divide numel?",
    ),
)

OPEN = [
    case(1, [5]),
    case(2, [6]),
    case(4, [12]),
    case(3, [10]),
    case(4, [3]),
    case(4, [5], groups=[[0, 3], [1, 2]]),
    case(3, [7], dtype="float32"),
    case(3, [8], again=True),
]
HIDDEN = [case(5, [12]), case(6, [11], groups=[[0, 2, 3, 5]]), case(8, [21]), case(3, [150_001])]


def expected(case: Case, arriving: int = 0) -> Expected:
    """The whole tensor; or chunks as they arrive, from the rank before (-1) or after (1)."""
    if not arriving:
        return {"full": [_full(case, rank) for rank in range(case.world_size)]}
    return {"full": [_as_they_come(case, r, ring, arriving) for r, ring in enumerate(rings(case))]}


def _as_they_come(case: Case, rank: int, ring: list[int], step: int) -> Array:
    order = [ring[(ring.index(rank) + step * i) % len(ring)] for i in range(len(ring))]
    return np.concatenate([_chunk(case, other) for other in order])


MISTAKES = {
    "chunks are put together in the order in which they arrive, not by their number": {"arriving": -1},
    "chunks are put together as they arrive from the rank after, not by their number": {"arriving": 1},
}
PARTS = [
    SentAtLeast(elements=lambda g: (g.n - 1) * g.numel),
    Messages(
        count=lambda g: g.n - 1,
        each=lambda g: ceil_div(g.numel, g.n),
        of="ceil({g.numel:,}/{g.n})",
        passed="at most n-1 messages of at most {most:,} elements per rank",
    ),
]
