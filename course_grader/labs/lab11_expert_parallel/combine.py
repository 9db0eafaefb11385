"""`combine`: results travel home, and every token adds up its own."""

from typing import Any

import numpy as np

from course_grader.expected.on_ranks import BACKWARD, FORWARD, axis_group, on_ranks, own
from course_grader.labs.lab11_expert_parallel import _oracle as rows
from course_grader.types import Array, Case, Exercise, Expected


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    return {
        "rows": rows.own_rows(case, rank, "rows"),
        "counts": rows.counts(case, rank),
        "experts": rows.choices(case, rank),
        "weights": rows.weights(case, rank),
        "grad_out": own(case, rank, "grad_out", rows.num_tokens(case, rank), case.params["model_dim"]),
    }


EXERCISE = Exercise(
    order=3,
    title="Combine",
    minutes=25,
    difficulty=4,
    importance=5,
    lines=12,
    points={"values": 1.0, "bytes": 2.0},
    task="Write the way back: from the experts' results, in the order in which your dispatch handed out the "
    "rows, return every token's weighted sum, `[T, D]`. Differentiable, too.",
    graded={
        "values": "Every token's sum is right, and so are the gradients of rows and weights.",
        "bytes": "Each result travels once; nothing is told that both ends know.",
    },
    details="As dispatch: 1 to 4 ranks (hidden: 6), groups that are not the world nor neighbours, empty "
    "experts, ranks that get nothing back, or have nothing at all, float64. counts int64 [ep, E/ep] and "
    "experts [T, k] (-1: dropped) are those of dispatch; a token whose choices were all dropped gets 0. "
    "Bytes per rank: forward at most its rows times D elements, backward at most its tokens' kept choices "
    "times D; no counts.",
    signature="(rows, counts, experts, weights, group)",
    forbids=("expert parallelism",),
    scenario=on_ranks(
        inputs=_inputs,
        arguments=["rows", "counts", "experts", "weights", "ep_group"],
        returns="out",
        wrt=("rows", "weights"),
    ),
    hints=(
        "Everything that dispatch did happens backwards. Which two numbers of rows does each pair of "
        "ranks know already, one from counts and one from experts?",
        "First undo the sorting: the inverse of a permutation p is p.argsort(). Then all_to_all with the "
        "splits of dispatch exchanged. What arrives has the order in which you had sorted your kept "
        "choices.",
        "The rows come back in your sorted order: which token and which weight belongs to each? Several "
        "rows add up at one token. The two lists of splits are those of dispatch, exchanged: one counts "
        "your choices, the other what you were sent.",
    ),
)

OPEN, HIDDEN = rows.OPEN, rows.HIDDEN


def expected(
    case: Case,
    order: rows.Order = rows.by_expert,
    weighted: bool = True,
    choices: int | None = None,
    last: bool = False,
) -> Expected:
    """Sums and gradients.

    order: how the rows are taken to lie. choices: how many of a token's count. last: only its last row does.
    """
    n, model_dim = case.world_size, case.params["model_dim"]
    weights = [rows.weights(case, r) for r in range(n)]
    grad_out = [_inputs(case, r)["grad_out"] for r in range(n)]
    out = [np.zeros((rows.num_tokens(case, r), model_dim)) for r in range(n)]
    grad_rows = [np.zeros((len(rows.arrived(case, r)), model_dim)) for r in range(n)]
    grad_weights = [np.zeros_like(each) for each in weights]
    for r in range(n):
        results, group = rows.own_rows(case, r, "rows"), axis_group(case, r, "ep")
        for place, (_, token, choice, expert) in enumerate(arrived := rows.arrived(case, r, order)):
            home = group[arrived[place].sender]
            if choices is not None and choice >= choices:
                continue
            if last and expert != rows.choices(case, home)[token].max():
                continue
            weight = weights[home][token, choice] if weighted else 1.0
            out[home][token] += weight * results[place]
            grad_rows[r][place] = weight * grad_out[home][token]
            grad_weights[home][token, choice] = (results[place] @ grad_out[home][token]) * weighted
    return {"out": out, "grad:rows": grad_rows, "grad:weights": grad_weights}


MISTAKES: dict[str, dict[str, Any]] = {
    "the weights were left out": {"weighted": False},
    "rows went back sorted by expert: first undo what dispatch sorted": {"order": rows.by_sender},
    "only the first choice of each token counted": {"choices": 1},
    "rows of one token overwrote one another, as out[token] += rows does: index_add adds": {"last": True},
}


PARTS = [
    rows.as_routed(
        window=FORWARD,
        at_most=rows.arrived_bytes,
        what="the results of the rows it got",
        why="Each result goes home once; counts and experts say how many go where.",
    ),
    rows.as_routed(
        window=BACKWARD,
        at_most=rows.sent_bytes,
        what="the gradients of the results it gets back",
        why="They take the way of dispatch again.",
    ),
]
