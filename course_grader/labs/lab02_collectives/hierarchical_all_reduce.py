"""`hierarchical_all_reduce_`: reduce inside a server first, so that little crosses between servers."""

import numpy as np

from course_grader.labs.lab02_collectives._collective import (
    OTHER_MEMORY,
    ceil_div,
    collective,
    in_place,
    own_tensors,
    rank_input,
    servers,
)
from course_grader.parts.bytes import BytesAtMost, SentAtLeast
from course_grader.types import Case, Exercise, Expected

EXERCISE = Exercise(
    order=7,
    symbol="hierarchical_all_reduce_",
    title="All-reduce over servers",
    minutes=20,
    difficulty=3,
    importance=5,
    lines=4,
    points={"values": 1.0, "bytes": 2.0},
    task="Write a function that replaces `tensor` by the sum over all ranks, in place. `inside` is the group "
    "of this rank's server, `across` that of the ranks at its place in all servers.",
    graded={
        "values": "Every rank's tensor becomes the sum.",
        "bytes": "Only a k-th of what a flat ring sends crosses between servers, k = ranks of a server.",
    },
    details="m servers of k ranks: up to 2 x 2 and 3 x 1 (hidden: up to 2 x 4 and 4 x 2), sizes that do not "
    "divide, float64 and float32. Bytes: a rank sends at most 2(m-1)/m x S/k elements to other servers, "
    "rounded up as 2(m-1) ceil(ceil(S/k)/m). The groups and the three collectives are supplied.",
    signature="(tensor, inside, across, reduce_scatter, all_gather, all_reduce_)",
    forbids=("collectives",),
    scenario=collective(
        in_place=True, arguments=["inside", "across", "reduce_scatter", "all_gather", "all_reduce_"]
    ),
    hints=(
        "A server has k ranks, each with its own link to the others. How small can the part be that each of "
        "them carries across, if they share the work?",
        "Sum inside the server first, and leave each rank with one chunk of that sum. Ranks at the same "
        "place in their servers (the group `across`) hold the same chunk.",
        "You are given what each of the steps needs: which of them works in place, which returns something "
        "new, and which wants to know a length? At the end the caller looks into `tensor`, whatever its "
        "shape.",
    ),
)

OPEN = [
    *(servers(1, 1, [5]), servers(1, 2, [7]), servers(2, 1, [6]), servers(2, 2, [4, 2]), servers(3, 1, [10])),
    *(servers(2, 2, [9]), servers(2, 2, [6], dtype="float32")),
]
HIDDEN = [
    *(servers(3, 2, [4, 5]), servers(2, 3, [17]), servers(4, 2, [37]), servers(2, 4, [150_001])),
    servers(2, 2, [3]),
]


def expected(case: Case, among: str = "all", moved: bool = False) -> Expected:
    """The sum over all ranks; or over the ranks of a server, over those at one place, or nobody's."""
    n, k = case.world_size, case.params["server_size"]
    own = own_tensors(case)
    blocks = {
        "all": [range(n)] * n,
        "server": [range(r // k * k, r // k * k + k) for r in range(n)],
        "place": [range(r % k, n, k) for r in range(n)],
        "itself": [range(r, r + 1) for r in range(n)],
    }
    results = [np.sum([own[other] for other in ranks], axis=0) for ranks in blocks[among]]
    return in_place(results, own if moved else None)


LOCAL_ONLY = {"among": "itself"}
MISTAKES = {
    "only the ranks of one server are summed: nothing went across": {"among": "server"},
    "only ranks at the same place of their servers are summed: nothing was summed inside": {"among": "place"},
    OTHER_MEMORY: {"moved": True},
}


def _bound(case: Case) -> int:
    k: int = case.params["server_size"]
    m, numel = case.world_size // k, rank_input(case, 0).size
    return 2 * (m - 1) * ceil_div(ceil_div(numel, k), m)


def _looks_like(case: Case, crossed: list[float]) -> str:
    """A leader per server, a ring that ignores servers, or all of S across."""
    k, numel = case.params["server_size"], rank_input(case, 0).size
    m = case.world_size // k
    if case.params.get("dtype") == "float32" and max(crossed) <= 2 * _bound(case):
        return "Float64 on the wire for a float32 tensor?"
    if k > 1 and sum(elements > 0 for elements in crossed) == m:
        return (
            "One rank per server carries everything: is it one ring over all, or a leader? Let all k share."
        )
    if k > 1 and min(crossed) >= 2 * (m - 1) * (numel // m):
        return "All k ranks carry the whole tensor: reduce_scatter inside comes first."
    return "Only the sum of a server needs to cross, and each of its ranks can carry a k-th of it."


PARTS = [
    SentAtLeast(elements=lambda g: 2 * (g.n - 1) * g.numel),
    BytesAtMost(
        at_most=_bound,
        count="sent",
        unit="elements",
        to_other=lambda case: case.params["server_size"],
        must="to other servers a rank may send 2(m-1) ceil(ceil(S/k)/m),",
        why=_looks_like,
    ),
]
