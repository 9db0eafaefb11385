"""`tree_broadcast_`: whoever has the tensor helps to spread it, so the holders double every round."""

from course_grader.labs.lab02_collectives._collective import (
    OTHER_MEMORY,
    OTHER_ROOTS,
    case,
    collective,
    in_place,
    members,
    own_tensors,
    rank_input,
    taken_for_root,
)
from course_grader.labs.lab02_collectives._rounds import problem_of_rounds, rounds_needed
from course_grader.parts.bytes import SentAtLeast
from course_grader.parts.counts import Calls
from course_grader.parts.order import Holds
from course_grader.types import Case, Exercise, Expected

EXERCISE = Exercise(
    order=2,
    symbol="tree_broadcast_",
    title="Broadcast along a tree",
    minutes=25,
    difficulty=3,
    importance=4,
    lines=13,
    points={"values": 1.0, "bytes": 1.0, "order": 2.0},
    task="Write a function that replaces every member's `tensor` by that of the rank `root`, in place. "
    "`root` is a global rank, also in a group.",
    graded={
        "values": "Every member's tensor becomes the root's.",
        "bytes": "Every member but the root receives the tensor once, whole.",
        "order": "It takes ceil(log2 n) rounds: in each, all who have the tensor send it to one who has not.",
    },
    details="1 to 4 ranks (hidden: 5, 6, 8), any root, groups that are not the world, float64 and float32. "
    "Bytes: every member but the root receives exactly one message, the tensor; the root receives none. "
    "Order: in a round a rank sends at most one message, and only what it received in an earlier one.",
    signature="(tensor, root, group)",
    forbids=("collectives",),
    scenario=collective(in_place=True, arguments=["root", "group"]),
    hints=(
        "In round 1 one rank has the tensor, so one can send. In round 2 two have it. Who should send to "
        "whom, so that in every round all who have it help?",
        "Number the members from the root: place = (position - position of the root) mod n. In the round in "
        "which `span` places have the tensor, place p < span sends to place p + span, if there is one.",
        "In one round a place sends, receives or rests: which two comparisons of p with span decide that, "
        "and when does a sender have no partner? Peers of send and recv are global ranks, not places.",
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
HIDDEN = [
    case(5, [7], root=3),
    case(6, [2, 3], root=5),
    case(8, [150_000], root=0),
    case(8, [4], root=6),
    case(6, [5], groups=[[1, 2, 4, 5]], root=4),
]


def expected(case: Case, root: int | str = "", moved: bool = False, spread: bool = True) -> Expected:
    """The root's tensor on every member."""
    own, wanted = own_tensors(case), case.params["root"]
    ring = members(case, wanted)
    source = taken_for_root(case, root)
    results = [rank_input(case, source) if spread and r in ring else own[r] for r in range(case.world_size)]
    return in_place(results, own if moved else None)


LOCAL_ONLY = {"spread": False}
MISTAKES = {OTHER_MEMORY: {"moved": True}, **OTHER_ROOTS}


def _received(case: Case, rank: int, _: int) -> dict[str, list[int]]:
    due = rank in members(case, case.params["root"]) and rank != case.params["root"]
    return {"recv": [rank_input(case, rank).nbytes] if due else []}


PARTS = [
    SentAtLeast(elements=lambda g: (g.n - 1) * g.numel),
    Calls(
        exactly=_received,
        others=True,
        must="the tensor must come in one message, and on the root in none",
        why="One parent sends it to each other rank, whole, once.",
        passed="each rank but the root receives the tensor once",
    ),
    Holds(
        problem=problem_of_rounds,
        passed=lambda case: f"{rounds_needed(case)} rounds",
        applies=lambda case: case.trace,
    ),
]
