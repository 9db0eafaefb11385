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
    graded="Every rank returns the gradients of the mean loss over the rows of all ranks, a list in "
    "the order of `model.parameters()`, equal to those of one process with the whole batch, at "
    "1-4 ranks (hidden: 5, 6). Ranks hold equally many rows and equal weights; the weights stay "
    "as they are, to the bit, and trainable. Models (nested, with buffers) and `loss_fn` "
    "differ; on some ranks a gradient is zero. Bytes: each rank hands every gradient to an "
    "all_reduce once, and nothing else to any collective (one call a parameter, or one for all: "
    "as you like; barriers are free).",
    signature="(model, loss_fn, x, y)",
    closed=("course_lib.parallel.ddp", "torch:ddp", "torch:fsdp"),
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
_BUFFER = "shift"
_NO_X = "x = 0 on rank 1"  # the gradient of the first weight there is exactly zero
_NO_LOSS = "no loss on rank 1"  # all gradients there are nearly zero


def cases(seed: int, hidden: bool) -> list[Case]:
    """Models of different sizes on 1 to 4 ranks; hidden: 5 and 6 ranks, and a model of 1 MB."""
    out = [
        _case(1, seed, _OPEN[0]),
        _case(2, seed, _OPEN[1]),
        _case(3, seed, _OPEN[2], loss="linex", rows=_NO_LOSS),
        _case(4, seed, _OPEN[3], nested=True, rows=_NO_X),
    ]
    if hidden:
        out += [
            _case(3, seed, _LARGE, rows=_NO_X),
            _case(5, seed, _OPEN[1], nested=True, loss="linex"),
            _case(6, seed, _OPEN[2], rows=_NO_LOSS),
        ]
    return out


def _case(
    world_size: int, seed: int, widths: list[int], *, nested: bool = False, loss: str = "mse", rows: str = ""
) -> Case:
    count = 2 + int(np.random.default_rng([seed, world_size]).integers(0, 4))
    label = [
        f"{world_size} rank{'s' * (world_size > 1)}",
        *(["a nested model with a buffer"] if nested else []),
        *(["another loss_fn"] if loss != "mse" else []),
        *([rows] if rows else []),
    ]
    params = {"widths": widths, "rows": count, "nested": nested, "loss": loss, "special": rows}
    return Case(world_size=world_size, seed=seed, params=params, label=", ".join(label))


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """Equal weights everywhere, other rows on each rank."""
    widths, rows = case.params["widths"], case.params["rows"]
    rows_rng, weights = rng(case, rank, 1), _weights(case)
    x = rows_rng.normal(size=(rows, widths[0]))
    y = rows_rng.normal(size=(rows, widths[-1]))
    if rank == 1 and case.params["special"] == _NO_X:
        x = np.zeros_like(x)
    if rank == 1 and case.params["special"] == _NO_LOSS:
        y = _forward({name: torch.tensor(array) for name, array in weights.items()}, torch.tensor(x)).numpy()
    return weights | {"x": x, "y": y}


def _weights(case: Case) -> dict[str, Array]:
    """Parameters in the order of the model's, then its buffer."""
    weights_rng, widths, nested = rng(case), case.params["widths"], case.params["nested"]
    # Three: with the layers' pairs an odd number.
    ends = {"scale": widths[0], "gain": widths[-1], "lift": widths[-1]} if nested else {}
    out: dict[str, Array] = {name: weights_rng.normal(1, 0.2, size=width) for name, width in ends.items()}
    for layer, (width_in, width_out) in enumerate(pairwise(widths)):
        name = f"{'body.' * nested}{2 * layer}"
        out[f"{name}.weight"] = weights_rng.normal(size=(width_out, width_in)) / np.sqrt(width_in)
        out[f"{name}.bias"] = weights_rng.normal(size=width_out)
    return out | ({_BUFFER: weights_rng.normal(size=widths[0])} if nested else {})


def oracle(case: Case) -> dict[str, Any]:
    """Gradients of one process: of all rows; of each rank's rows and by known mistakes, for the diagnosis."""
    shards = [inputs(case, rank) for rank in range(case.world_size)]
    alone = [_gradients(case, shard["x"], shard["y"]) for shard in shards]
    x, y = (np.concatenate([shard[name] for shard in shards]) for name in ("x", "y"))
    near = {"every rank ends with the gradient of rank 0": alone[0]} if case.world_size > 1 else {}
    if case.params["loss"] != "mse":
        near["mse_loss is taken; call the loss_fn that is passed in"] = _gradients(case, x, y, "mse")
        near["the target comes first; it is loss_fn(prediction, target)"] = _gradients(case, x, y, "swapped")
    want: dict[str, Any] = {
        f"grad:{name}": Want(
            gradient,
            alone=[grads[name] for grads in alone],
            near={words: grads[name] for words, grads in near.items()},
        )
        for name, gradient in _gradients(case, x, y).items()
    }
    want["trainable parameters after the call"] = [name for name in _weights(case) if name != _BUFFER]
    return want | {_after(name): Want(value) for name, value in _weights(case).items()}


def _after(name: str) -> str:
    return f"{name} of the model after the call"


def _gradients(case: Case, x: Array, y: Array, loss: str = "") -> dict[str, Array]:
    weights = {
        name: torch.tensor(array, requires_grad=name != _BUFFER) for name, array in _weights(case).items()
    }
    out, target = _forward(weights, torch.tensor(x)), torch.tensor(y)
    value = _loss(loss or case.params["loss"], out, target)
    leaves = {name: weight for name, weight in weights.items() if weight.requires_grad}
    grads = torch.autograd.grad(value, list(leaves.values()))
    return {name: grad.numpy() for name, grad in zip(leaves, grads, strict=True)}


def _forward(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    hidden = x * weights["scale"] + weights[_BUFFER] if _BUFFER in weights else x
    layers = [name.removesuffix(".weight") for name in weights if name.endswith(".weight")]
    for depth, layer in enumerate(layers):
        hidden = torch.tanh(hidden) if depth else hidden
        hidden = hidden @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]
    return hidden * weights["gain"] + weights["lift"] if "gain" in weights else hidden


def _loss(name: str, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if name == "mse":
        return ((out - target) ** 2).mean()
    error = 0.5 * (target - out if name == "swapped" else out - target)
    return (torch.exp(error) - error - 1).sum(-1).mean()


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Every gradient through all_reduce once, and nothing else; weights equal to the last bit."""
    del want
    for rank, data in enumerate(got):
        for name, array in _weights(case).items():
            if data.tensors[_after(name)].tobytes() != array.tobytes():
                text = f"`{name}` must stay as it is to the last bit; rank {rank} changed it. Work on a copy."
                return [Part("values", False, text, gate=True)]
    why = "the gradients' bytes, once, are all that data parallelism has to send"
    for rank, data in enumerate(got):
        others = Counter(c.op for c in data.traced.launches() if c.op not in (*SILENT, "all_reduce"))
        if others:
            seen = ", ".join(f"{count} {op}" for op, count in others.items())
            text = f"rank {rank} must use all_reduce and nothing else; it also launched {seen}."
            text += f" {why.capitalize()}."
            return [Part("bytes", False, text)]
    size = sum(array.nbytes for name, array in _weights(case).items() if name != _BUFFER)
    low = size if case.world_size > 1 else 0
    return [bytes_between("bytes", got, low, size, op="all_reduce", why=why)]
