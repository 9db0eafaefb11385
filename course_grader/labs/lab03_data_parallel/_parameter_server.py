"""Judge's half of `parameter_server`: the arrivals played in numpy, right and with mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from course_grader.types import Array, Case, Scenario, rng

MOST_WORKERS = 6
Read = tuple[Array, int]  # the weights that a worker read, and how many updates there had been


def case(label: str, arrivals: Sequence[int], lr: float) -> Case:
    """One order of arrivals."""
    return Case(world_size=1, params={"arrivals": list(arrivals), "lr": lr}, label=label, trace=False)


def drawn(label: str, workers: Sequence[int], count: int, lr: float) -> Case:
    """So many arrivals of these workers, in an order that the seed draws."""
    params = {"arrivals": [], "lr": lr, "workers": list(workers), "count": count}
    return Case(world_size=1, params=params, label=label, trace=False)


def _cases(chosen: Sequence[Case], seed: int) -> list[Case]:
    draw, out = np.random.default_rng([seed, 3]), []
    for one in chosen:
        params = dict(one.params)
        if "workers" in params:
            params["arrivals"] = draw.choice(params.pop("workers"), params.pop("count")).tolist()
        out.append(replace(one, seed=seed, params=params))
    return out


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    """Initial weights (D,), and rows (workers, m, D) with targets (workers, m)."""
    del rank
    draw = rng(case, len(case.params["arrivals"]))
    return {
        "weights": draw.normal(size=4),
        "rows": draw.normal(size=(MOST_WORKERS, 5, 4)),
        "targets": draw.normal(size=(MOST_WORKERS, 5)),
    }


def parameter_server() -> Scenario:
    """impl(weights, gradient, arrivals, lr) in one process."""
    return Scenario(
        rank_side="course_grader.inside.programs.lab03:parameter_server", inputs=_inputs, cases=_cases
    )


def played(
    case: Case, *, on: str = "what was read", reads: str = "after", scale: float = 1.0
) -> tuple[Array, list[int]]:
    """Play the arrivals. Returns the path (arrivals + 1, D) and each update's staleness.

    Args:
        on: the weights a gradient is computed on: "what was read", "newest" or "initial".
        reads: when a worker reads: "after" its update, "before" it, "late": for the first time when
            it arrives.
        scale: of a step; 0 divides by the number of workers.
    """
    data, arrivals = _inputs(case, 0), case.params["arrivals"]
    weights = data["weights"]
    read: list[Read] = [(weights, 0)] * MOST_WORKERS
    path, staleness = [weights], []
    for done, worker in enumerate(arrivals):
        if reads == "late" and worker not in arrivals[:done]:
            read[worker] = (weights, done)
        at = {"newest": weights, "initial": path[0]}.get(on, read[worker][0])
        rows, targets = data["rows"][worker], data["targets"][worker]
        step = case.params["lr"] * rows.T @ (rows @ at - targets) / len(rows)
        staleness.append(done - read[worker][1])
        weights = weights - step * (scale or 1 / len(set(arrivals)))
        new = (path[-1], done) if reads == "before" else (weights, done + 1)
        read[worker] = new
        path.append(weights)
    return np.stack(path), staleness
