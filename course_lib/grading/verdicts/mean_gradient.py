"""`mean_gradient`: data parallelism in a dozen lines.

The oracle is one process with the whole batch. The bytes part asks for all_reduce of the gradients and
nothing else: gathering rows or gradients gives the same values, and costs more with every rank.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want, rng
from course_lib.grading.measure import SILENT, bytes_between

EXERCISE = Exercise(
    id="mean_gradient",
    lab="00_start_here",
    order=2,
    symbol="mean_gradient",
    title="Data parallelism in a dozen lines",
    minutes=20,
    difficulty=2,
    importance=5,
    lines=8,
    points={"values": 2.0, "bytes": 1.0},
    graded="Every rank returns the gradients of the mean loss over the rows of all ranks, a list in the "
    "order of `model.parameters()`, equal to those of one process with the whole batch, at 1-4 ranks. "
    "Ranks hold equally many rows and equal weights; the weights stay as they are. Bytes: each rank hands "
    "every gradient to an all_reduce once, and nothing else to any collective (one call a parameter, or "
    "one for all: as you like).",
    signature="(model, loss_fn, x, y)",
    closed=("course_lib.parallel.ddp", "torch:ddp"),
    hints=(
        "First do what one process would do with its own rows: forward, loss, backward. Then ask what is "
        "missing.",
        "After backward, parameter.grad is the gradient of the mean over this rank's rows. With equally "
        "many rows on each rank, the mean over all rows is the mean of these means: a sum over ranks, and "
        "a division.",
        "One collective sums a tensor over all ranks and leaves the result on every rank. Call it on each "
        "gradient, on every rank in the same order, divide by the number of ranks, and return the "
        "gradients as a list.",
    ),
)

_OPEN = ([3, 5, 1], [2, 7, 4], [4, 3, 3, 2], [5, 8, 2])
_LARGE = [256, 512, 4]  # 134,148 parameters, 1.07 MB: enough to confirm the bytes on the wire


def cases(seed: int, hidden: bool) -> list[Case]:
    """Models of different sizes on 1 to 4 ranks; hidden: 5 and 6 ranks, and a model of 1 MB."""
    worlds = list(zip((1, 2, 3, 4), _OPEN, strict=True))
    if hidden:
        worlds += [(3, _LARGE), (5, _OPEN[1]), (6, _OPEN[2])]
    return [_case(world_size, seed, widths) for world_size, widths in worlds]


def _case(world_size: int, seed: int, widths: list[int]) -> Case:
    rows = 2 + int(np.random.default_rng([seed, world_size]).integers(0, 4))
    return Case(world_size=world_size, seed=seed, params={"widths": widths, "rows": rows})


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """Equal weights everywhere, other rows on each rank."""
    widths, rows = case.params["widths"], case.params["rows"]
    rows_rng = rng(case, rank, 1)
    return _weights(case) | {
        "x": rows_rng.normal(size=(rows, widths[0])),
        "y": rows_rng.normal(size=(rows, widths[-1])),
    }


def _weights(case: Case) -> dict[str, Array]:
    weights_rng, widths = rng(case), case.params["widths"]
    out: dict[str, Array] = {}
    for layer, (width_in, width_out) in enumerate(pairwise(widths)):
        out[f"{2 * layer}.weight"] = weights_rng.normal(size=(width_out, width_in)) / np.sqrt(width_in)
        out[f"{2 * layer}.bias"] = weights_rng.normal(size=width_out)
    return out


def oracle(case: Case) -> dict[str, Any]:
    """Gradients of one process: of all rows; of each rank's rows, for the diagnosis."""
    shards = [inputs(case, rank) for rank in range(case.world_size)]
    alone = [_gradients(_weights(case), shard["x"], shard["y"]) for shard in shards]
    x, y = (np.concatenate([shard[name] for shard in shards]) for name in ("x", "y"))
    whole = _gradients(_weights(case), x, y)
    want: dict[str, Any] = {}
    for name, gradient in whole.items():
        near = {"every rank ends with the gradient of rank 0": alone[0][name]} if case.world_size > 1 else {}
        want[f"grad:{name}"] = Want(gradient, alone=[grads[name] for grads in alone], near=near)
    return want | {
        f"{name} of the model after the call": Want(value) for name, value in _weights(case).items()
    }


def _gradients(weights: dict[str, Array], x: Array, y: Array) -> dict[str, Array]:
    leaves = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    hidden = torch.tensor(x)
    for layer in range(0, len(leaves), 2):
        hidden = torch.tanh(hidden) if layer else hidden
        hidden = hidden @ leaves[f"{layer}.weight"].T + leaves[f"{layer}.bias"]
    loss = ((hidden - torch.tensor(y)) ** 2).mean()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return {name: grad.numpy() for name, grad in zip(leaves, grads, strict=True)}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Every gradient through all_reduce once, and nothing else."""
    del want
    why = "the gradients' bytes, once, are all that data parallelism has to send"
    for rank, data in enumerate(got):
        others = Counter(c.op for c in data.traced.launches() if c.op not in (*SILENT, "all_reduce"))
        if others:
            seen = ", ".join(f"{count} {op}" for op, count in others.items())
            text = f"rank {rank} must use all_reduce and nothing else; it also launched {seen}."
            text += f" {why.capitalize()}."
            return [Part("bytes", False, text)]
    size = sum(array.nbytes for array in _weights(case).values())
    low = size if case.world_size > 1 else 0
    return [bytes_between("bytes", got, low, size, op="all_reduce", why=why)]
