"""`tree_broadcast_`: whoever has the tensor helps to spread it, so the holders double every round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData
from course_lib.grading.ring_worlds import (
    CLOSED,
    Message,
    communicated,
    elements,
    held,
    in_place,
    members,
    rounds,
    world,
)

EXERCISE = Exercise(
    id="tree_broadcast",
    lab="02_collectives",
    order=2,
    symbol="tree_broadcast_",
    title="Broadcast along a tree",
    minutes=25,
    difficulty=3,
    importance=4,
    lines=13,
    points={"values": 2.0, "bytes": 1.0, "order": 1.0},
    graded="Values, at 1-4 ranks (hidden: 5, 6, 8), from any root, in groups that are not the world: "
    "every member's tensor becomes the root's, in place; nothing is left in flight. Bytes: every member but "
    "the root receives exactly one message, the tensor; the root receives none. Order: at most ceil(log2 n) "
    "rounds, where a rank sends at most one message a round and only what it received in an earlier one.",
    closed=CLOSED,
    signature="(tensor, root, group)",
    hints=(
        "In round 1 one rank has the tensor, so one can send. In round 2 two have it. Who should send to "
        "whom, so that in every round all who have it help?",
        "Number the members from the root: place = (position - position of the root) mod n. In the round in "
        "which `span` places have the tensor, place p < span sends to place p + span, if there is one.",
        "Let span run over 1, 2, 4, ... while span < n. A place in [span, 2 span) receives from place - span "
        "in that round; a place below span sends. Turn places back into global ranks for send and recv.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Roots first, last and in between; the world and groups. In a group the root is a global rank too."""
    found = [
        world(1, seed, [3], root=0),
        world(2, seed, [5], root=0),
        world(4, seed, [3, 2], root=0),
        world(3, seed, [4], root=2, dtype="float32"),
        world(4, seed, [6], groups=[[1, 2, 3]], root=2),
        world(4, seed, [6], root=1, again=True),
    ]
    if hidden:
        found += [
            world(5, seed, [7], root=3),
            world(6, seed, [2, 3], root=5),
            world(8, seed, [150_000], root=0),
            world(8, seed, [4], root=6),
            world(6, seed, [5], groups=[[0, 2, 3, 4, 5]], root=4),
        ]
    return found


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's tensor; only the root's counts."""
    return {"tensor": held(case, rank)}


def oracle(case: Case) -> dict[str, Any]:
    """The root's tensor on every member."""
    n, root = case.world_size, case.params["root"]
    near = {}
    if root and 0 in members(case, root) and n > 2:
        near["rank 0 is the root: the argument `root` is asked"] = held(case, 0)
    want = in_place(case, [held(case, root if members(case, r) else r) for r in range(n)])
    return {**want, "tensor": replace(want["tensor"], near=near)}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Who received how often, and in how many rounds."""
    del want
    if "again" in case.params:
        return []
    numel = held(case, 0).size
    gate = communicated(case, got, lambda n: (n - 1) * numel)
    return gate or [_bytes(case, got), _order(case, got)]


def _bytes(case: Case, got: list[RankData]) -> Part:
    size = held(case, 0).size
    for rank, data in enumerate(got):
        due = 1 if members(case, rank) and rank != case.params["root"] else 0
        seen = elements(case, [call for call in data.traced.launches("recv") if call.bytes_])
        if len(seen) == due and all(numel == size for numel in seen):
            continue
        text = f"{due} message{'s' * (due != 1)}" + (f" of {size:,} elements" if due else "")
        who = f"rank {rank}" + (", the root," if rank == case.params["root"] else "")
        pieces = f" of {max(seen):,.0f} elements" if seen else ""
        return Part(
            "bytes", False, f"{who} must receive {text}; it received {len(seen)}{pieces}.{_advice(due)}"
        )
    return Part("bytes", True, f"each rank but the root receives once, {size:,} elements")


def _advice(due: int) -> str:
    if due:
        return " One parent sends it the whole tensor, once."
    return " What it holds is not what others have to tell it."


def _order(case: Case, got: list[RankData]) -> Part:
    n = len(members(case, case.params["root"]))
    allowed = (n - 1).bit_length()
    messages = rounds([data.traced for data in got])
    last = max(messages, key=lambda m: m.round_, default=None)
    if last is None or last.round_ <= allowed:
        return Part("order", True, f"{allowed} rounds for {n} ranks")
    chain = ", then ".join(f"{m.src} to {m.dst}" for m in last.chain())
    text = (
        f"the tensor must reach all {n} ranks in ceil(log2 {n}) = {allowed} rounds; it took {last.round_}: "
        f"{chain}.{_shape(messages, last)}"
    )
    return Part("order", False, text)


def _shape(messages: list[Message], last: Message) -> str:
    """Name messages in pieces, a star and a chain."""
    chain = last.chain()
    if len({(m.src, m.dst) for m in messages}) < len(messages):
        return " A rank got several messages, and each takes a round: send the tensor in one."
    if all(m.src == last.src for m in messages):
        return " The root sends everything itself: let those who have the tensor help."
    if len(chain) == len(messages) == len({m.src for m in chain}):
        return " A chain: only one rank sends at a time."
    return " Everyone who has the tensor must send in every round."
