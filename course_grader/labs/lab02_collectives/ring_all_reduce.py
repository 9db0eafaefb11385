"""`ring_all_reduce_`: an all-reduce is a reduce-scatter, then an all-gather."""

from course_grader.labs.lab02_collectives._collective import (
    OTHER_MEMORY,
    case,
    ceil_div,
    collective,
    in_place,
    own_tensors,
    total,
)
from course_grader.parts.bytes import Messages, Sent, SentAtLeast
from course_grader.types import Case, Exercise, Expected

EXERCISE = Exercise(
    order=6,
    symbol="ring_all_reduce_",
    title="All-reduce from two halves",
    minutes=10,
    difficulty=2,
    importance=5,
    lines=3,
    points={"values": 0.75, "bytes": 1.75},
    task="Write a function that replaces `tensor` by the sum over the group, in place, out of the two "
    "functions that it is given.",
    graded={
        "values": "Every rank's tensor becomes the sum, in its own memory and shape.",
        "bytes": "A rank sends what two rounds of the ring need, and no more.",
    },
    details="1 to 4 ranks (hidden: 5, 6, 8), groups that are not the world, sizes that n does not divide, "
    "float64 and float32; others may hold views of the tensor. Bytes: a rank sends at most 2(n-1) ceil(S/n) "
    "elements, S = elements of the tensor. reduce_scatter(tensor, group) and all_gather(chunk, numel, group) "
    "are supplied.",
    signature="(tensor, reduce_scatter, all_gather, group)",
    forbids=("collectives",),
    scenario=collective(in_place=True, arguments=["reduce_scatter", "all_gather", "group"]),
    hints=(
        "After a reduce_scatter each rank owns one chunk of the sum. What is missing is that "
        "the others get it.",
        "reduce_scatter(tensor, group) returns a 1-D chunk, all_gather(chunk, numel, group) a 1-D tensor. "
        "The result must be in `tensor` itself: assigning to the name changes nothing for the caller.",
        "The sum comes back 1-D, and `tensor` has a shape of its own. Which view of it is 1-D, too, and how "
        "does one write into a view, so that nothing new is made?",
    ),
)

# The first world in which gather-then-broadcast costs more than a ring has 3 ranks; 4 come first.
OPEN = [
    case(1, [5]),
    case(2, [7]),
    case(4, [6, 4]),
    case(3, [10]),
    case(4, [9], groups=[[0, 2, 3]]),
    case(3, [5], dtype="float32"),
    case(2, []),
]
HIDDEN = [
    case(5, [4, 3]),
    case(3, [5, 4]),
    case(6, [13], groups=[[0, 1, 5], [2, 3, 4]]),
    case(8, [43]),
    case(4, [150_001]),
]


def expected(case: Case, summed: bool = True, moved: bool = False) -> Expected:
    """The sum of the group on each of its ranks, in its memory."""
    own = own_tensors(case)
    results = [total(case, rank) for rank in range(case.world_size)] if summed else own
    return in_place(results, own if moved else None)


LOCAL_ONLY = {"summed": False}
MISTAKES = {OTHER_MEMORY: {"moved": True}}


def _looks_like(sent: Sent) -> str:
    """One rank does the work, or all send everything."""
    g, bound = sent.group, _bound(sent.group.n, sent.group.numel)
    busy = sum(one > bound for one in sent.totals)
    if abs(max(sent.totals) - (g.n - 1) * g.numel) <= 2 * g.n:
        return "Gather then broadcast?" if busy == 1 else "Does every rank send its whole tensor to all?"
    if busy < g.n:
        return "Reduce then broadcast along a tree?"
    return "Once round for the sums, once for the results is enough."


def _bound(n: int, numel: int) -> int:
    return 2 * (n - 1) * ceil_div(numel, n)


PARTS = [
    SentAtLeast(elements=lambda g: 2 * (g.n - 1) * g.numel),
    Messages(
        total=lambda g: _bound(g.n, g.numel), of="2(n-1) ceil({g.numel:,}/{g.n})", why=_looks_like, worst=True
    ),
]
