"""`ring_shift`: pass a tensor to the next rank of a ring, with no rank that waits for ever."""

from course_grader.labs.lab02_collectives._collective import case, collective, rank_input, rings
from course_grader.parts.bytes import Messages, SentAtLeast
from course_grader.types import Case, Exercise, Expected

EXERCISE = Exercise(
    order=1,
    title="Pass it on",
    minutes=15,
    difficulty=2,
    importance=4,
    lines=8,
    points={"values": 0.5, "bytes": 1.5},
    task="Write a function that sends this rank's tensor to the next rank of `group`, a ring, and returns "
    "the one that the rank before it sent.",
    graded={
        "values": "Every rank returns the tensor of the rank before it, and nobody waits for ever.",
        "bytes": "A rank sends its tensor once.",
    },
    details="1 to 4 ranks (hidden: 5, 6, 8), groups that are not the world, 5 elements to 1.2 MB (hidden: "
    "1.6 MB), float64 and float32. The input stays as it was, later calls leave what earlier ones returned, "
    "and each isend and irecv was waited for. Bytes: a rank sends at most the elements of its tensor.",
    signature="(tensor, group)",
    forbids=("collectives",),
    scenario=collective(returns="shifted"),
    hints=(
        "If every rank sends first, nobody receives. Either some ranks receive first, or sending must not "
        "block.",
        "dist.isend and dist.irecv return a Work at once. Start both, then wait for both. The peers they "
        "take are global ranks; dist.get_process_group_ranks(group) lists a group's.",
        "Neither tensor may be read or written before its wait. Peers are global ranks, and place 0 of a "
        "group need not be rank 0: who comes after the last place, who before the first? What does a ring "
        "of one do?",
    ),
)

OPEN = [
    case(1, [5]),
    case(2, [7]),
    case(3, [4, 3]),
    case(4, [5], dtype="float32"),
    case(4, [6], groups=[[0, 3], [1, 2]]),
    case(3, [150_000]),
    case(3, [4], again=True),
]
HIDDEN = [case(5, [1]), case(6, [10], groups=[[1, 3, 4]]), case(8, [2, 2, 3]), case(4, [200_000])]


def expected(case: Case, step: int = -1) -> Expected:
    """The tensor of the rank that is `step` places away in its ring."""
    return {
        "shifted": [
            rank_input(case, ring[(ring.index(r) + step) % len(ring)]) for r, ring in enumerate(rings(case))
        ]
    }


LOCAL_ONLY = {"step": 0}
MISTAKES = {
    "it was passed the wrong way round: receive from the rank before, send to the one after": {"step": 1}
}
PARTS = [
    SentAtLeast(elements=lambda g: g.n * g.numel),
    Messages(
        total=lambda g: g.numel if g.n > 1 else 0,
        of="the elements of its tensor",
        why=lambda sent: "Only the next rank needs it.",
    ),
]
