"""`route`: which experts each token visits, what they count, and who finds no slot.

Longer than 120 lines: drops are a part of their own, with the orders that students serve in by mistake.
"""

from typing import Any

import numpy as np
import torch

from course_grader.expected.on_ranks import case as on_ranks_case
from course_grader.expected.on_ranks import on_ranks, own
from course_grader.parts.order import Holds
from course_grader.types import Array, Case, Exercise, Expected, Observation, Why, rng


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    p = case.params
    logits = rng(case, 1).normal(size=(p["tokens"], p["num_experts"]))
    if p["tied"]:
        logits = np.round(logits)
    return {"logits": logits, "grad_weights": own(case, rank, "grad_weights", p["tokens"], p["k"])}


def case(tokens: int, num_experts: int, k: int, capacity: int | None = None, tied: bool = False) -> Case:
    """One rank's tokens."""
    label = f"{tokens} tokens, {num_experts} experts, top {k}, "
    label += f"{'no limit' if capacity is None else f'{capacity} slots'}{', ties' * tied}"
    sizes: dict[str, Any] = {
        "tokens": tokens,
        "num_experts": num_experts,
        "k": k,
        "capacity": capacity,
        "tied": tied,
    }
    return on_ranks_case(1, label=label, **sizes)


EXERCISE = Exercise(
    order=1,
    title="The router's decision",
    minutes=30,
    difficulty=3,
    importance=5,
    lines=10,
    points={"values": 0.5, "drops": 1.5},
    task="Write a function that returns, for the router's logits [T, E], `(experts, weights, kept)`: the k "
    "experts of each token, best first; what each counts; and whether it has a slot for the token.",
    graded={
        "values": "Experts and weights are right, equal logits among them; and so is the gradient that "
        "reaches the logits through the weights.",
        "drops": "Exactly the choices that exceed an expert's capacity are dropped, in the stated order.",
    },
    details="One rank, float64; experts int64 [T, k], weights [T, k], kept bool [T, k]. Scores are a softmax "
    "over all E experts; weights are the chosen scores, divided by their sum where k > 1, dropped choices "
    "among them. Of equal scores the lower index comes first. Slots go to all first choices in token "
    "order, then to all second choices, and so on; capacity None drops nothing. 1 to 40 tokens "
    "(hidden: 400), 1 to 16 experts, k from 1 to E.",
    signature="(logits, k, capacity)",
    forbids=("expert parallelism", "routing"),
    scenario=on_ranks(
        inputs=_inputs,
        arguments=["logits", "k", "capacity"],
        returns=["experts", "weights", "kept"],
        wrt=("logits",),
    ),
    hints=(
        "Which of the three results must carry a gradient? And a queue: whom does an expert serve first, "
        "the second choice of token 0 or the first choice of token 9?",
        "torch.topk promises no order among equals; sort(dim=-1, descending=True, stable=True) does. For "
        "the queue, write the choices in the order in which they are served: experts.t().flatten().",
        "With one_hot of that list, a running sum along the list says how many of its expert each choice "
        "finds there, itself included. Bring these places back to [T, k] and compare with the capacity.",
    ),
)

OPEN = [
    case(7, 4, 2),
    case(1, 1, 1, 1),
    case(12, 4, 1, 2),
    case(16, 6, 3, 5, tied=True),
    case(9, 3, 3, 4, tied=True),
]
HIDDEN = [case(40, 16, 4, 6), case(400, 8, 2, 100, tied=True), case(30, 5, 1, None, tied=True)]


def _chosen(case: Case, best: str = "lower") -> Array:
    scores: Array = torch.from_numpy(_inputs(case, 0)["logits"]).softmax(-1).numpy()
    last = scores.shape[1] - 1
    order: Array = np.argsort(-scores, axis=1, kind="stable")
    if best == "higher":
        order = last - np.argsort(-scores[:, ::-1], axis=1, kind="stable")
    return order[:, : case.params["k"]].copy()


def expected(case: Case, best: str = "lower", scaled: str = "sum") -> Expected:
    """Experts, weights and the gradient of the logits; kept is a part of its own."""
    given = _inputs(case, 0)
    logits = torch.from_numpy(given["logits"]).requires_grad_()
    experts = torch.from_numpy(_chosen(case, best))
    weights = logits.softmax(-1).gather(1, experts)
    if scaled == "sum" and case.params["k"] > 1:
        weights = weights / weights.sum(-1, keepdim=True)
    if scaled == "always":
        weights = logits.gather(1, experts).softmax(-1)
    graph = weights.detach() + 0 * logits.sum() if scaled == "detached" else weights
    (grad,) = torch.autograd.grad(graph, logits, torch.from_numpy(given["grad_weights"]))
    return {
        "experts": [experts.numpy()],
        "weights": [weights.detach().numpy()],
        "grad:logits": [grad.numpy()],
    }


def right_kept(case: Case, order: str = "choices") -> Array:
    """Serve first choices of all tokens, then second ones; or token by token."""
    experts, capacity = _chosen(case), case.params["capacity"]
    served = np.zeros(case.params["num_experts"], int)
    kept = np.zeros(experts.shape, bool)
    places = np.ndindex(experts.T.shape) if order == "choices" else np.ndindex(experts.shape)
    for place in places:
        t, i = place[::-1] if order == "choices" else place
        kept[t, i] = capacity is None or served[experts[t, i]] < capacity
        served[experts[t, i]] += 1
    return kept


def _drops(seen: Observation) -> Why | None:
    got, want = seen.got[0].tensors.get("kept"), right_kept(seen.case)
    if got is None or got.shape != want.shape or got.dtype != bool:
        found = "no tensor" if got is None else f"{got.dtype} {list(got.shape)}"
        return Why(f"kept must be a tensor, bool {list(want.shape)}", f"got {found}")
    if np.array_equal(got, want):
        return None
    t, i = np.argwhere(got != want)[0]
    why = Why(
        f"choice {i} of token {t} must be {'kept' if want[t, i] else 'dropped'}",
        f"kept says {bool(got[t, i])}",
    )
    if np.array_equal(got, right_kept(seen.case, "tokens")):
        return why.advised("This is what you get token by token: first choices of all tokens come first.")
    if np.all(got):
        return why.advised(f"Nothing is dropped: an expert takes {seen.case.params['capacity']} tokens.")
    return why.advised("Number the choices of each expert in the order in which they are served.")


MISTAKES: dict[str, dict[str, Any]] = {
    "of equal scores the higher index came first": {"best": "higher"},
    "the weights of a token were not divided by their sum": {"scaled": "never"},
    "the softmax ran over the chosen logits where k is 1, too: a single choice keeps its score": {
        "scaled": "always"
    },
    "the weights are detached: the router learns through them alone": {"scaled": "detached"},
}
PARTS = [Holds(part="drops", problem=_drops, passed="the right choices are dropped", reads_trace=False)]
