"""`reduce_to_root_`: the tree of a broadcast turned round; partial sums flow to the root."""

from course_grader.labs.lab02_collectives._collective import (
    OTHER_ROOTS,
    case,
    collective,
    in_place,
    own_tensors,
    sums_on_the_way,
    taken_for_root,
    total,
)
from course_grader.labs.lab02_collectives._rounds import problem_of_rounds, rounds_needed
from course_grader.parts.bytes import BytesAtMost, Messages, SentAtLeast
from course_grader.parts.order import Holds
from course_grader.types import Case, Exercise, Expected

EXERCISE = Exercise(
    order=3,
    symbol="reduce_to_root_",
    title="Reduce along a tree",
    minutes=15,
    difficulty=3,
    importance=3,
    lines=12,
    points={"values": 0.5, "bytes": 0.75, "order": 0.75},
    task="Write a function that replaces the tensor of the rank `root` by the sum of all members' tensors. "
    "The others' tensors stay as they are. `root` is a global rank, also in a group.",
    graded={
        "values": "The root's tensor becomes the sum; every other tensor stays as it was.",
        "bytes": "A rank sends at most one tensor and receives at most ceil(log2 n).",
        "order": "It takes ceil(log2 n) rounds: in each, pairs of partial sums become one.",
    },
    details="1 to 4 ranks (hidden: 5, 6, 8), any root, groups that are not the world, float64 and float32. "
    "Bytes: the elements of one tensor sent, and of ceil(log2 n) received, at most. n is the group's size. "
    "Order: a rank that adds what it received sends in a later round.",
    signature="(tensor, root, group)",
    forbids=("collectives",),
    scenario=collective(in_place=True, arguments=["root", "group"]),
    hints=(
        "In `tree_broadcast_` a place receives once, then sends to several. Here it is the other way round.",
        "With the places of `tree_broadcast_`: in the round of `span`, place p receives from p + span, if "
        "there is one. A p that is an odd multiple of span sends to p - span instead, and is done.",
        "Who has sent is done. Who goes on has added what came, but only the root's tensor may change: "
        "where do the others keep their sums? As before, peers are global ranks, not places.",
    ),
)

OPEN = [
    case(1, [3], root=0),
    case(2, [5], root=0),
    case(4, [3, 2], root=0),
    case(3, [4], root=2, dtype="float32"),
    case(4, [6], groups=[[0, 2, 3]], root=2),
    case(4, [6], root=1, again=True),
]
HIDDEN = [case(5, [7], root=3), case(6, [5], groups=[[1, 2, 4, 5]], root=4), case(8, [150_000], root=6)]


def expected(
    case: Case, root: int | str = "", summed: bool = True, own: bool = True, left: str = ""
) -> Expected:
    """The sum on the root, the others as they were. left: "partial" sums on the way, or "all" of it."""
    at = taken_for_root(case, root)
    tensors = sums_on_the_way(case, at, left) if left else own_tensors(case)
    if summed:
        tensors[at] = total(case, at) - (0 if own else tensors[at])
    return in_place(tensors)


LOCAL_ONLY = {"summed": False}
MISTAKES = {
    "the root's own tensor is missing": {"own": False},
    "partial sums are left in the tensors of ranks on the way: theirs stay as they are": {"left": "partial"},
    "every member ends with the sum: only the root's tensor changes": {"left": "all"},
    **OTHER_ROOTS,
}
PARTS = [
    SentAtLeast(elements=lambda g: (g.n - 1) * g.numel),
    Messages(
        total=lambda g: g.numel if g.n > 1 else 0,
        of="the elements of its tensor",
        why=lambda sent: "Each member sends one partial sum, once; the root keeps what it has.",
    ),
    BytesAtMost(
        at_most=lambda case: rounds_needed(case) * own_tensors(case)[0].size,
        count="received",
        unit="elements",
        must="a rank may receive",
        why="Ranks on the way to the root add up, and pass one partial sum on.",
    ),
    Holds(
        problem=lambda seen: problem_of_rounds(seen, "the sum of all {n} must reach the root"),
        passed=lambda case: f"{rounds_needed(case)} rounds",
        applies=lambda case: case.trace,
    ),
]
