"""`accumulate`: many micro-batches, one synchronisation, the gradient of the whole batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from course_lib.grading import supplied_ddp
from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want, rng
from course_lib.grading.measure import between
from course_lib.grading.toy_oracle import LATER, collectives, events_between, later_gates
from course_lib.grading.toys import (
    LEARNING_RATE,
    ToyNet,
    build_toy,
    gradients_of,
    nbytes,
    toy_weights,
    trainable,
)

EXERCISE = Exercise(
    id="accumulate",
    lab="03_data_parallel",
    order=4,
    symbol="accumulate",
    title="A batch larger than memory",
    minutes=20,
    difficulty=3,
    importance=5,
    lines=10,
    points={"values": 2.0, "bytes": 1.0, "memory": 1.0},
    graded="Values, at 1-4 ranks (hidden: 5, 6): gradients and the weights after SGD equal one process on "
    "all samples of all micro-batches of all ranks, with micro-batches of different sizes and numbers, in "
    "every call. Bytes: at most one gradient's worth, plus 64 bytes, goes into collectives. Memory: "
    "activations, gradients and all else peak at 1.5 times those of the largest micro-batch alone, or less.",
    closed=("course_lib.parallel", "torch:ddp", "torch:fsdp", "torch:comm_hooks", "torch:saved_tensors"),
    signature="(ddp, microbatches, loss_fn, num_samples) -> None",
    hints=(
        "The loss of the whole batch is a sum over samples divided by `num_samples`. What share of it is "
        "the mean over one micro-batch?",
        "`ddp` takes the mean over ranks, that is, it divides by world_size. Put that factor back, so that "
        "what remains is a sum over ranks. Dividing by the number of micro-batches is right only if all are "
        "equal.",
        "Scale each micro-batch's loss by its number of samples * world_size / num_samples, and call "
        "backward on each at once. All but the last go under ddp.no_sync(); ddp.sync_gradients() ends the "
        "step.",
    ),
)
MODEL = {"width": 24}


def cases(seed: int, hidden: bool) -> list[Case]:
    """Equal micro-batches on one world, different sizes and numbers on the others."""
    return [_case(n, seed) for n in ((1, 2, 3, 4, 5, 6) if hidden else (1, 2, 3, 4))]


def _case(world_size: int, seed: int) -> Case:
    draw = np.random.default_rng([seed, world_size])
    # So large that a copy of the gradients, which another right style keeps, is little beside activations.
    sizes = [[int(s) for s in draw.integers(48, 97, size=4 + rank % 2)] for rank in range(world_size)]
    for rank, row in enumerate(sizes):
        row[-1] = 24 + 8 * (rank % 2)  # a short last one, as at the end of an epoch
    words = f"{world_size} rank{'s' * (world_size > 1)}, uneven micro-batches"
    params = {"model": MODEL, "sizes": sizes, "ddp": supplied_ddp.source()}
    return Case(world_size=world_size, seed=seed, params=params, label=words)


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """Equal weights everywhere, this rank's samples."""
    draw = rng(case, rank)
    num = sum(case.params["sizes"][rank])
    weights = toy_weights(case.params["model"], rng(case, 1000))
    return weights | {"x": draw.normal(size=(num, 5)), "y": draw.normal(size=(num, 3))}


def oracle(case: Case) -> dict[str, Any]:
    """One backward over all samples; known wrong weights beside it."""
    ranks = [{k: torch.from_numpy(v) for k, v in inputs(case, r).items()} for r in range(case.world_size)]
    each, sizes = _each(case, ranks), case.params["sizes"]
    n, total = case.world_size, sum(map(sum, sizes))
    right = _weigh(each, [[s / total for s in row] for row in sizes])
    near = {
        "all micro-batches weigh the same, whatever their size": [
            [1 / len(row) / n for _ in row] for row in sizes
        ],
        "micro-batches are added up and never divided": [[1 / n for _ in row] for row in sizes],
        "every rank weighs the same, however many samples it has": [
            [s / sum(row) / n for s in row] for row in sizes
        ],
        "only the last micro-batch of each rank counts": [[0.0] * (len(row) - 1) + [1 / n] for row in sizes],
        "only the last micro-batch counts, with its right weight": [
            [0.0] * (len(row) - 1) + [row[-1] / total] for row in sizes
        ],
        "the division by world_size inside `ddp` is not put back": [
            [s / total / n for s in row] for row in sizes
        ],
    }
    wrong = {words: _weigh(each, weights) for words, weights in near.items()}
    alone = [_weigh(each, _only(sizes, r, n / total)) for r in range(n)]
    start = {k.removeprefix("weight:"): v.numpy() for k, v in ranks[0].items() if k.startswith("weight:")}
    out: dict[str, Any] = {}
    for name, grad in right.items():
        mistakes = (
            {words: grads[name] for words, grads in wrong.items()}
            if n > 1
            else {
                words: grads[name]
                for words, grads in wrong.items()
                if "rank" not in words and "world" not in words
            }
        )
        mine = [grads[name] for grads in alone]
        out[f"grad:{name}"] = Want(grad, alone=mine, near=mistakes)
    for name, value in start.items():
        out[f"{LATER}{name} after a step"] = Want(_moved(value, right.get(name)))
    return out


def _moved(value: Array, grad: Array | None) -> Array:
    return value if grad is None else np.asarray(value - LEARNING_RATE * grad)


def _only(sizes: list[list[int]], rank: int, factor: float) -> list[list[float]]:
    return [[s * factor * (r == rank) for s in row] for r, row in enumerate(sizes)]


def _each(case: Case, ranks: list[dict[str, Tensor]]) -> list[list[dict[str, Array]]]:
    """Gradients of every micro-batch's mean loss, by rank; all else is a weighted sum of these."""
    model = build_toy(case.params["model"], ranks[0])
    out: list[list[dict[str, Array]]] = []
    for rank, sizes in zip(ranks, case.params["sizes"], strict=True):
        out.append([])
        for x, y in zip(rank["x"].split(sizes), rank["y"].split(sizes), strict=True):
            model.zero_grad()
            mse_loss(model(x), y).backward()
            out[-1].append({name: grad.numpy() for name, grad in gradients_of(model).items()})
    return out


def _weigh(each: list[list[dict[str, Array]]], weights: list[list[float]]) -> dict[str, Array]:
    """Weighted sum of the micro-batches' gradients."""
    rows = [(w, g) for row, grads in zip(weights, each, strict=True) for w, g in zip(row, grads, strict=True)]
    return {name: np.asarray(sum(w * g[name] for w, g in rows)) for name in rows[0][1]}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """One synchronisation, and no more activations than one micro-batch needs."""
    late = later_gates(case, got, want)
    if late:
        return late
    grad_bytes = nbytes(trainable(ToyNet(**case.params["model"])))
    sent = [
        sum(c.bytes_ for c in collectives(events_between(d.traced, "accumulate begins", "accumulate ends")))
        for d in got
    ]
    low = 0 if case.world_size == 1 else grad_bytes
    why = "backwards under ddp.no_sync() send nothing; one outside it sends all"
    parts = [between("bytes", sent, low, grad_bytes + 64, what="bytes into collectives", why=why)]
    peaks = [_peak(d, "accumulate") / max(_peak(d, "one"), 1) for d in got]
    why = "call backward on each micro-batch before the next forward, or all their graphs are alive at once"
    what = "times the activations and gradients of the largest micro-batch"
    return [*parts, between("memory", peaks, 0, 1.5, what=what, why=why)]


def _peak(data: RankData, name: str) -> int:
    """The most bytes beyond what lived before: a saved tensor packed into another is no "activation"."""
    start = f"{name} begins"
    return data.traced.peak_bytes(start=start, end=f"{name} ends") - data.traced.live_bytes_at(start)
