"""`ring_shift`: pass a tensor to the next rank of a ring, with no rank that waits for ever."""

from __future__ import annotations

from typing import Any

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want
from course_lib.grading.ring_worlds import (
    CLOSED,
    communicated,
    held,
    members,
    sent_elements,
    with_again,
    world,
)

EXERCISE = Exercise(
    id="ring_shift",
    lab="02_collectives",
    order=1,
    symbol="ring_shift",
    title="Pass it on",
    minutes=15,
    difficulty=2,
    importance=4,
    lines=8,
    points={"values": 1.5, "bytes": 0.5},
    graded="Values, at 1-4 ranks (hidden: 5, 6, 8), in groups that are not the world, from 5 elements to "
    "1.2 MB: every rank returns the tensor of the rank before it in the ring, the input stays as it was, "
    "later calls leave what earlier ones returned, nobody waits for ever, and nothing is in flight any "
    "more at the end (each isend and irecv was waited for). Bytes: a rank sends at most the elements of its "
    "tensor.",
    closed=CLOSED,
    signature="(tensor, group)",
    hints=(
        "If every rank sends first, nobody receives. Either some ranks receive first, or sending must not "
        "block.",
        "dist.isend and dist.irecv return a Work at once. Start both, then wait for both. The peers they "
        "take are global ranks; dist.get_process_group_ranks(group) lists a group's.",
        "With ring = the global ranks of the group and me = this rank's place in it: receive into an empty "
        "tensor from ring[me - 1], send to ring[(me + 1) % n]. A ring of one has no one to talk to.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Small and large messages, the world and groups."""
    found = [
        world(1, seed, [5]),
        world(2, seed, [7]),
        world(3, seed, [4, 3]),
        world(4, seed, [5], dtype="float32"),
        world(4, seed, [6], groups=[[0, 2], [1, 3]]),
        world(3, seed, [150_000]),
        world(3, seed, [4], again=True),
    ]
    if hidden:
        found += [
            world(5, seed, [1]),
            world(6, seed, [10], groups=[[1, 3, 4]]),
            world(8, seed, [2, 2, 3]),
            world(4, seed, [200_000]),
        ]
    return found


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's tensor."""
    return {"tensor": held(case, rank)}


def oracle(case: Case) -> dict[str, Any]:
    """The tensor of the rank before; of the one after if it was passed the wrong way round."""

    def neighbours(step: int) -> list[Array]:
        rings = [members(case, r) or [r] for r in range(case.world_size)]
        return [held(case, ring[(ring.index(r) + step) % len(ring)]) for r, ring in enumerate(rings)]

    wrong_way = "it was passed the wrong way round: receive from the rank before, send to the one after"
    near = {wrong_way: neighbours(1)} if len(members(case, case.world_size - 1)) > 2 else {}
    return with_again(case, "shifted", Want(neighbours(-1), per_rank=True, alone=neighbours(0), near=near))


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Count what was sent."""
    del want
    if "again" in case.params:
        return []
    size = held(case, 0).size
    gate = communicated(case, got, lambda n: n * size)
    return gate or [_bytes(case, got)]


def _bytes(case: Case, got: list[RankData]) -> Part:
    for rank, data in enumerate(got):
        size = held(case, rank).size if len(members(case, rank)) > 1 else 0
        sent = sent_elements(case, data)
        if sent > size:
            ratio = f" ({sent / size:.1f}x)" if size else ""
            text = (
                f"rank {rank} may send at most the {size:,} elements of its tensor; it sent "
                f"{sent:,.0f}{ratio}."
            )
            if size == 0:
                return Part("bytes", False, text + " It has nobody to send to.")
            return Part("bytes", False, text + " Only the next rank needs it.")
    return Part("bytes", True, f"at most {held(case, 0).size:,} elements sent a rank")
