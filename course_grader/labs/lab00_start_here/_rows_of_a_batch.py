"""Judge's half of `rows_of_a_batch`: equal weights, other rows on each rank, one process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from course_grader.types import Array, Case, Expected, Scenario, rng

BUFFER = "shift"
TRAINABLE = "trainable parameters after the call"
NO_X = "x = 0 on rank 1"  # the gradient of the first weight there is exactly zero
NO_LOSS = "no loss on rank 1"  # all gradients there are nearly zero


def case(
    world_size: int, widths: list[int], *, nested: bool = False, loss: str = "mse", special: str = ""
) -> Case:
    """Ranks with a model of these widths; the seed draws how many rows each has."""
    label = [
        f"{world_size} rank{'s' * (world_size > 1)}",
        *(["a nested model with a buffer"] if nested else []),
        *(["another loss_fn"] if loss != "mse" else []),
        *([special] if special else []),
    ]
    params = {"widths": widths, "nested": nested, "loss": loss, "special": special}
    return Case(world_size=world_size, params=params, label=", ".join(label))


def _cases(chosen: Sequence[Case], seed: int) -> list[Case]:
    rows = [2 + int(np.random.default_rng([seed, one.world_size]).integers(0, 4)) for one in chosen]
    return [
        replace(one, seed=seed, params={**one.params, "rows": count})
        for one, count in zip(chosen, rows, strict=True)
    ]


def rows_of_a_batch() -> Scenario:
    """impl(model, loss_fn, x, y) on every rank, x and y [rows, features]."""
    return Scenario(
        rank_side="course_grader.inside.programs.lab00:rows_of_a_batch", inputs=_inputs, cases=_cases
    )


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    widths, rows = case.params["widths"], case.params["rows"]
    draw, own = rng(case, rank, 1), weights(case)
    x = draw.normal(size=(rows, widths[0]))
    y = draw.normal(size=(rows, widths[-1]))
    if rank == 1 and case.params["special"] == NO_X:
        x = np.zeros_like(x)
    if rank == 1 and case.params["special"] == NO_LOSS:
        y = _forward({name: torch.tensor(array) for name, array in own.items()}, torch.tensor(x)).numpy()
    return own | {"x": x, "y": y}


def weights(case: Case) -> dict[str, Array]:
    """Parameters in the order of the model's, then its buffer."""
    draw, widths, nested = rng(case), case.params["widths"], case.params["nested"]
    # Three: with the layers' pairs an odd number.
    ends = {"scale": widths[0], "gain": widths[-1], "lift": widths[-1]} if nested else {}
    out: dict[str, Array] = {name: draw.normal(1, 0.2, size=width) for name, width in ends.items()}
    for layer, (width_in, width_out) in enumerate(pairwise(widths)):
        name = f"{'body.' * nested}{2 * layer}"
        out[f"{name}.weight"] = draw.normal(size=(width_out, width_in)) / np.sqrt(width_in)
        out[f"{name}.bias"] = draw.normal(size=width_out)
    return out | ({BUFFER: draw.normal(size=widths[0])} if nested else {})


def gradient_bytes(case: Case) -> int:
    """Bytes of all gradients."""
    return sum(array.nbytes for name, array in weights(case).items() if name != BUFFER)


def after(name: str) -> str:
    """The name under which a rank hands back a weight."""
    return f"{name} of the model after the call"


def gradients(case: Case, rows: str = "all", loss: str = "") -> Expected:
    """The gradients of one process, and the model as it was.

    rows: "all", or those of "each" rank, or of "rank 0". loss: "mse", or "swapped" for the target first.
    """
    n = case.world_size
    shards = [_inputs(case, rank) for rank in range(n)]
    if rows == "each":
        found = [_differentiate(case, [shard], loss) for shard in shards]
    else:
        found = [_differentiate(case, shards[:1] if rows == "rank 0" else shards, loss)] * n
    world: Expected = {f"grad:{name}": [grads[name] for grads in found] for name in found[0]}
    world[TRAINABLE] = [[name for name in weights(case) if name != BUFFER]] * n
    return world | {after(name): [array] * n for name, array in weights(case).items()}


def _differentiate(case: Case, shards: Sequence[dict[str, Array]], loss: str) -> dict[str, Array]:
    x, y = (torch.tensor(np.concatenate([shard[name] for shard in shards])) for name in ("x", "y"))
    tensors = {
        name: torch.tensor(array, requires_grad=name != BUFFER) for name, array in weights(case).items()
    }
    value = _loss(loss or case.params["loss"], _forward(tensors, x), y)
    leaves = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    grads = torch.autograd.grad(value, list(leaves.values()))
    return {name: grad.numpy() for name, grad in zip(leaves, grads, strict=True)}


def _forward(tensors: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    hidden = x * tensors["scale"] + tensors[BUFFER] if BUFFER in tensors else x
    layers = [name.removesuffix(".weight") for name in tensors if name.endswith(".weight")]
    for depth, layer in enumerate(layers):
        hidden = torch.tanh(hidden) if depth else hidden
        hidden = hidden @ tensors[f"{layer}.weight"].T + tensors[f"{layer}.bias"]
    return hidden * tensors["gain"] + tensors["lift"] if "gain" in tensors else hidden


def _loss(name: str, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if name == "mse":
        return ((out - target) ** 2).mean()
    error = 0.5 * (target - out if name == "swapped" else out - target)
    return (torch.exp(error) - error - 1).sum(-1).mean()
