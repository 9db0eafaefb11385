"""`async_sgd_step`: a parameter server that applies gradients as they arrive, computed on old weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want, rng

EXERCISE = Exercise(
    id="async_sgd_step",
    lab="03_data_parallel",
    order=7,
    symbol="async_sgd_step",
    title="Asynchronous SGD, step by step",
    minutes=20,
    difficulty=3,
    importance=2,
    lines=12,
    points={"values": 1.0, "staleness": 1.0},
    graded="`path`: float64 tensor of shape (arrivals + 1, D), equal to the exact path, its first row the "
    "initial weights, which stay "
    "as they were. Staleness: one int per arrival, the number of updates between the worker's read and its "
    "own. 1-6 workers, perhaps no arrival.",
    signature="(weights, gradient, arrivals, lr)",
    hints=(
        "A worker computes on what it read last, not on what the server holds now. What must you remember "
        "for each worker?",
        "Keep two things per worker: a copy of the weights it read, and how many updates the server had "
        "made by then. "
        "At the start every worker has read the initial weights.",
        "Per arrival: gradient on the worker's old copy, staleness = updates so far - updates when it read, "
        "new weights = "
        "old - lr * gradient (a new tensor: `-=` would change every copy), then this worker alone reads "
        "again.",
    ),
    bonus=True,
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Orders of arrival: one worker, round robin, a straggler, random ones."""
    draw = np.random.default_rng([seed, 3])
    orders: dict[str, list[int]] = {
        "1 worker": [0, 0, 0, 0],
        "3 workers in turn": [0, 1, 2] * 3,
        "2 workers, one 4x slower": [0, 0, 0, 0, 1] * 2,
        "4 workers, random order": draw.integers(0, 4, 12).tolist(),
    }
    if hidden:
        orders["5 workers, two never arrive"] = draw.choice([0, 2, 4], 9).tolist()
        orders["no arrival"] = []
        orders["6 workers, random order"] = draw.integers(0, 6, 30).tolist()
    return [
        Case(
            world_size=1,
            seed=seed + i,
            params={"arrivals": order, "lr": 0.05 * (i + 1)},
            label=label,
            trace=False,
        )
        for i, (label, order) in enumerate(orders.items())
    ]


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """Initial weights (D,), and rows (workers, m, D) with targets (workers, m)."""
    del rank
    draw = rng(case)
    return {
        "weights": draw.normal(size=4),
        "rows": draw.normal(size=(6, 5, 4)),
        "targets": draw.normal(size=(6, 5)),
    }


def simulate(case: Case, style: str = "right") -> tuple[Array, list[int]]:
    """Play the arrivals; `style` names a mistake to make."""
    data = inputs(case, 0)
    rows, targets, weights = data["rows"], data["targets"], data["weights"].copy()
    order, lr = case.params["arrivals"], case.params["lr"]
    read = [(weights.copy(), 0)] * len(rows)
    path, staleness = [weights.copy()], []
    for done, worker in enumerate(order):
        if style == "lazy" and worker not in order[:done]:
            read[worker] = (weights, done)
        seen, when = read[worker]
        at = weights if style == "fresh" else path[0] if style == "first" else seen
        gradient = rows[worker].T @ (rows[worker] @ at - targets[worker]) / rows.shape[1]
        before = weights.copy()
        scale = len(set(order)) if style == "mean" else 1
        weights = weights - lr * gradient / scale
        if style == "early":
            read[worker] = (before, done)
        elif style == "all":
            read = [(weights, done + 1)] * len(rows)
        else:
            read[worker] = (weights, done + 1)
        path.append(weights.copy())
        staleness.append(done - when)
    return np.stack(path), staleness


_MISTAKES = {
    "fresh": "every gradient is computed on the newest weights: a worker only has what it read last",
    "first": "workers never read again: after its update a worker reads the new weights",
    "lazy": "a worker first reads when it first arrives: all have read the initial weights",
    "early": "a worker reads before its own update is applied: it reads after",
    "all": "every worker reads after each update: only the one that arrived does",
    "mean": "the step is divided by the number of workers: here each gradient is applied as it arrives",
}


def oracle(case: Case) -> dict[str, Any]:
    """The exact path; staleness is judged apart."""
    path, staleness = simulate(case)
    near: dict[str, Any] = {}
    for style, words in _MISTAKES.items():
        wrong = simulate(case, style)[0]
        if not np.array_equal(wrong, path) and words not in near:
            near[words] = wrong
    near["every row of the path is the final weights: store copies, not the tensor you go on changing"] = (
        np.broadcast_to(path[-1], path.shape)
    )
    near["the signs of the steps are turned: subtract lr * gradient"] = 2 * path[:1] - path
    return {"path": Want(path, near=near), "_staleness": staleness}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Compare the staleness lists."""
    right, seen = want["_staleness"], got[0].values.get("staleness")
    if seen == right:
        worst = max(right, default=0)
        return [Part("staleness", True, f"{len(right)} updates, at most {worst} late")]
    if not isinstance(seen, list) or len(seen) != len(right):
        text = f"staleness must be a list of {len(right)} ints, one per arrival; got {seen!r:.80}."
        return [Part("staleness", False, text)]
    at = next(i for i, (a, b) in enumerate(zip(seen, right, strict=True)) if a != b)
    worker = case.params["arrivals"][at]
    text = f"arrival {at} (worker {worker}) must have staleness {right[at]}; got {seen[at]!r}."
    return [Part("staleness", False, f"{text} {_why(case, seen, right)}".rstrip())]


def _why(case: Case, seen: list[Any], right: list[int]) -> str:
    order = case.params["arrivals"]
    if seen == [s + 1 for s in right]:
        return "All are one too large: a worker's own update does not make it stale."
    if not any(seen):
        return "All are 0: did you count the updates of the other workers since this one read?"
    if seen == [i for i, _ in enumerate(order)]:
        return "You count updates since the start; count those since this worker read."
    if seen == [order[:i].count(w) for i, w in enumerate(order)]:
        return "You count the worker's own earlier updates; count those of all others since it read."
    return "Count the updates the server made after this worker read and before its own arrived."
