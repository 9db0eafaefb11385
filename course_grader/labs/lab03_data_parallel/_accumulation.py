"""Judge's half of `accumulation`: one process on all samples of all micro-batches of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from course_grader.inside.toy_models import (
    LEARNING_RATE,
    ToyNet,
    build_toy,
    gradients_of,
    nbytes,
    toy_weights,
    trainable,
)
from course_grader.labs.lab03_data_parallel import _supplied_ddp
from course_grader.parts.common import Window
from course_grader.types import Array, Case, Expected, Scenario, rng

ONE = Window("one begins", "one ends")
MODEL = {"width": 24}
Sizes = Sequence[Sequence[int]]  # samples of every micro-batch, a row per rank
Shares = Callable[[Sizes], Sequence[Sequence[float]]]


def case(world_size: int) -> Case:
    """Ranks with micro-batches of different sizes and numbers; the seed draws them."""
    words = f"{world_size} rank{'s' * (world_size > 1)}, uneven micro-batches"
    params = {"model": MODEL, "ddp": _supplied_ddp.source()}
    return Case(world_size=world_size, params=params, label=words)


def _cases(chosen: Sequence[Case], seed: int) -> list[Case]:
    return [
        replace(one, seed=seed, params={**one.params, "sizes": _sizes(one.world_size, seed)})
        for one in chosen
    ]


def _sizes(world_size: int, seed: int) -> list[list[int]]:
    draw = np.random.default_rng([seed, world_size])
    # So large that a copy of the gradients, which another right style keeps, is little beside activations.
    sizes = [[int(s) for s in draw.integers(48, 97, size=4 + rank % 2)] for rank in range(world_size)]
    for rank, row in enumerate(sizes):
        row[-1] = 24 + 8 * (rank % 2)  # a short last one, as at the end of an epoch
    return sizes


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    draw, num = rng(case, rank), sum(case.params["sizes"][rank])
    weights = toy_weights(case.params["model"], rng(case, 1000))
    return weights | {"x": draw.normal(size=(num, 5)), "y": draw.normal(size=(num, 3))}


def accumulation() -> Scenario:
    """impl(ddp, microbatches, loss_fn, num_samples) on every rank."""
    return Scenario(
        rank_side="course_grader.inside.programs.lab03:accumulation",
        inputs=_inputs,
        cases=_cases,
        follows=lambda name: not name.startswith("grad:"),
        returned=lambda case: [("ends", "the answer returns")],
    )


def right_shares(sizes: Sizes) -> list[list[float]]:
    """What each micro-batch's mean loss counts: its share of all samples."""
    total = sum(map(sum, sizes))
    return [[size / total for size in row] for row in sizes]


def trained(case: Case, shares: Shares = right_shares, local: bool = False) -> Expected:
    """Gradients, and the weights after SGD, if micro-batches count these shares.

    local: each rank has its own micro-batches alone, with their right share times the world size.
    """
    n, sizes = case.world_size, case.params["sizes"]
    shards = [{k: torch.from_numpy(v) for k, v in _inputs(case, r).items()} for r in range(n)]
    each, factors = _each(case, shards), shares(sizes)
    if local:
        kept = [[[s * n * (r == rank) for s in row] for r, row in enumerate(factors)] for rank in range(n)]
        grads = [_weigh(each, own) for own in kept]
    else:
        grads = [_weigh(each, factors)] * n
    start = {k.removeprefix("weight:"): v.numpy() for k, v in shards[0].items() if k.startswith("weight:")}
    world: Expected = {f"grad:{name}": [grad[name] for grad in grads] for name in grads[0]}
    moved = {name: [_moved(value, grad.get(name)) for grad in grads] for name, value in start.items()}
    return world | {f"{name} after a step": values for name, values in moved.items()}


def _moved(value: Array, grad: Array | None) -> Array:
    return value if grad is None else np.asarray(value - LEARNING_RATE * grad)


def _each(case: Case, shards: Sequence[dict[str, Tensor]]) -> list[list[dict[str, Array]]]:
    """Gradients of every micro-batch's mean loss, by rank; all else is a weighted sum of these."""
    model = build_toy(case.params["model"], shards[0])
    out: list[list[dict[str, Array]]] = []
    for shard, sizes in zip(shards, case.params["sizes"], strict=True):
        out.append([])
        for x, y in zip(shard["x"].split(sizes), shard["y"].split(sizes), strict=True):
            model.zero_grad()
            mse_loss(model(x), y).backward()
            out[-1].append({name: grad.numpy() for name, grad in gradients_of(model).items()})
    return out


def _weigh(each: Sequence[Sequence[dict[str, Array]]], shares: Sequence[Sequence[float]]) -> dict[str, Array]:
    rows = [(w, g) for row, grads in zip(shares, each, strict=True) for w, g in zip(row, grads, strict=True)]
    return {name: np.asarray(sum(w * g[name] for w, g in rows)) for name in rows[0][1]}


def gradient_bytes(case: Case) -> int:
    """Bytes of one gradient of the model."""
    return nbytes(trainable(ToyNet(**case.params["model"])))
