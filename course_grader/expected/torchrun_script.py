"""Judge's half of `inside/scenarios/torchrun_script`: data, and the training in one process, with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from course_grader.types import Array, Case, Scenario, rng

NUM_SAMPLES = 25  # which neither 2 nor 3 nor the batch divides
EPOCHS, BATCH_SIZE = 3, 4
LAYERS = ((8, 16), (16, 1))
SHAPES = [size for a, b in LAYERS for size in (a * b, b)]  # elements of each parameter
DRAWN = ("float32", "float64")  # torch draws other numbers in each, and both are right
Report = dict[str, Any]


def case(num_processes: int) -> Case:
    """One run under torchrun. It takes seconds, on a busy machine minutes: torch is imported again."""
    params = {"num_processes": num_processes}
    label = f"{num_processes} processes"
    return Case(world_size=1, params=params, label=label, trace=False, timeout_s=330.0)


def _cases(chosen: Sequence[Case], seed: int) -> list[Case]:
    """The last one alone."""
    draw = np.random.default_rng([seed, 6])
    given: dict[str, float] = {"--gpus": 0, "--seed": int(draw.integers(1, 10_000)), "--epochs": EPOCHS}
    given |= {"--batch-size": BATCH_SIZE, "--lr": round(float(draw.uniform(0.05, 0.2)), 3)}
    return [replace(one, seed=seed, params={**one.params, "arguments": given}) for one in chosen[-1:]]


def data(case: Case, rank: int = 0) -> dict[str, Array]:
    """A noisy copy of the samples for each process: x [n, 25, 8], y [n, 25, 1]."""
    del rank
    draw, count = rng(case), case.params["num_processes"]
    clean = {"x": draw.normal(size=(NUM_SAMPLES, 8)), "y": draw.normal(size=(NUM_SAMPLES, 1))}
    return {key: array + 0.3 * draw.normal(size=(count, *array.shape)) for key, array in clean.items()}


def torchrun_script() -> Scenario:
    """The answer returns the text of a script; of the cases listed, the last one alone is run."""
    return Scenario(
        rank_side="course_grader.inside.scenarios.torchrun_script:program",
        inputs=data,
        cases=_cases,
    )


def start(case: Case, dtype: str) -> list[Array]:
    """The initial parameters, drawn in a dtype."""
    state = torch.random.get_rng_state()
    torch.manual_seed(case.params["arguments"]["--seed"])
    layers = [torch.nn.Linear(*size, dtype=getattr(torch, dtype)) for size in LAYERS]
    torch.random.set_rng_state(state)
    return [p.detach().double().numpy().copy() for layer in layers for p in layer.parameters()]


def _forward(w: Sequence[Array], x: Array, y: Array) -> tuple[float, list[Array]]:
    """Loss and gradients of Linear(8, 16), tanh, Linear(16, 1) with the mean squared error."""
    hidden = np.tanh(x @ w[0].T + w[1])
    error = hidden @ w[2].T + w[3] - y
    d_out = 2 * error / error.size
    d_hidden = (d_out @ w[2]) * (1 - hidden**2)
    return float((error**2).mean()), [d_hidden.T @ x, d_hidden.sum(0), d_out.T @ hidden, d_out.sum(0)]


def train(
    case: Case, reports: Sequence[Report], begin: Sequence[Array], style: str = ""
) -> tuple[Array, list[Array]]:
    """Train on the samples that the processes say they took.

    style: mistakes: "alone", "kept", "whole", "sum", "twice", "still", or some of them.

    Returns losses (ranks, steps) and the parameters of each rank, flattened.
    """
    given, n, lr = data(case), len(reports), case.params["arguments"]["--lr"]

    def compute(rank: int, indices: list[int]) -> tuple[float, list[Array]]:
        return _forward(ranks[rank], given["x"][rank, indices], given["y"][rank, indices])

    ranks = [[w.copy() for w in begin] for _ in range(n)]
    kept = [[np.zeros_like(w) for w in begin] for _ in range(n)]
    losses = np.zeros((n, len(reports[0]["steps"])))
    for s in range(losses.shape[1]):
        batches = [report["steps"][s]["indices"] for report in reports]
        found = [compute(r, batches[r]) for r in range(n)]
        losses[:, s] = [loss for loss, _ in found]
        gradients = [own for _, own in found]
        for r in range(n):
            summed = [compute(r, batch)[1] for batch in batches] if "whole" in style else gradients
            mean = [np.mean([g[i] for g in summed], axis=0) for i in range(len(begin))]
            factor = {"sum": n, "twice": 1 / n, "still": 0}.get(style, 1)
            new = gradients[r] if "alone" in style else [factor * g for g in mean]
            # Without zero_grad DDP averages kept and new together; the kept part is the same on all ranks.
            kept[r] = [k + g for k, g in zip(kept[r], new, strict=True)] if "kept" in style else new
            ranks[r] = [w - lr * g for w, g in zip(ranks[r], kept[r], strict=True)]
    return losses, [np.concatenate([w.ravel() for w in rank]) for rank in ranks]
