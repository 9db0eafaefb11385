"""Small layers that are checkpointed in checks: they count their runs, and save far more than they take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDER = 8  # the hidden width over the width of input and output
HEADS = 2
Call = Callable[..., Any]


class Layer(nn.Module):
    """x + scale * dropout(down(gelu(up(x)))). Layout: x [T, W] -> [T, W]; up [W, 8W], down [8W, W]."""

    def __init__(self, up: Tensor, down: Tensor, dropout: float) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(up.clone()), nn.Parameter(down.clone())
        self.dropout, self.num_runs = dropout, 0

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        """Run once more."""
        self.num_runs += 1
        return x + scale * F.dropout(F.gelu(x @ self.up) @ self.down, self.dropout)


class AttentionLayer(nn.Module):
    """Attention with written-out scores, then an MLP. Layout: x [S, W] -> [S, W].

    Its operations: mm for every weight, bmm for scores [heads, S, S] and for what mixes by them.
    """

    def __init__(self, up: Tensor, down: Tensor, project: Tensor) -> None:
        super().__init__()
        self.up, self.down = nn.Parameter(up.clone()), nn.Parameter(down.clone())
        self.project = nn.Parameter(project.clone())  # [4, W, W]: query, key, value, out
        self.num_runs = 0

    def forward(self, x: Tensor) -> Tensor:
        """Run once more."""
        self.num_runs += 1
        length, width = x.shape
        query, key, value = (
            (x @ self.project[i]).view(length, HEADS, -1).transpose(0, 1).contiguous() for i in range(3)
        )
        scores = torch.bmm(query, key.transpose(1, 2)).softmax(-1)  # [heads, S, S]
        mixed = torch.bmm(scores, value).transpose(0, 1).reshape(length, width)
        x = x + mixed @ self.project[3]
        return x + F.gelu(x @ self.up) @ self.down


def layers_of(params: Mapping[str, Any], inputs: Mapping[str, Tensor]) -> list[Any]:
    """The case's layers, from its arrays."""
    count = params["layers"]
    if params.get("attention"):
        return [
            AttentionLayer(*(inputs[f"{name}_{i}"] for name in ("up", "down", "project")))
            for i in range(count)
        ]
    dropout = params.get("dropout", 0.0)
    return [Layer(inputs[f"up_{i}"], inputs[f"down_{i}"], dropout) for i in range(count)]


# ---- how layers are called: through `call(function, *args, **kwargs)`


def one_by_one(call: Call, layers: Sequence[Layer], x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Each layer by itself."""
    del inputs
    for layer in layers:
        x = call(layer, x)
    return x


def with_keywords(call: Call, layers: Sequence[Layer], x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """With a keyword, a tensor that needs no gradient, and a number."""

    def masked(x: Tensor, layer: Layer, mask: Tensor, times: int, *, scale: float) -> Tensor:
        out: Tensor = layer(x, scale=scale)
        return out * mask * times

    for layer in layers:
        x = call(masked, x, layer, inputs["mask"], 2, scale=0.5)
    return x


def two_inputs(call: Call, layers: Sequence[Layer], x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Two inputs need gradients, which differ."""
    del inputs
    before = x
    for layer in layers:
        x, before = call(lambda a, b, layer: layer(a) + 2 * b.sin(), x, before, layer), x
    return x


def from_tokens(call: Call, layers: Sequence[Layer], x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The first function's only input are integers; its weights learn all the same."""
    out = call(lambda tokens: layers[0](x[tokens]), inputs["tokens"])
    return one_by_one(call, layers[1:], out, inputs)


def nested(call: Call, layers: Sequence[Layer], x: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """Checkpointed layers inside a checkpointed function."""
    out: Tensor = call(lambda x: one_by_one(call, layers, x, inputs), x)
    return out


USES = {
    "one by one": one_by_one,
    "keywords": with_keywords,
    "two inputs": two_inputs,
    "tokens": from_tokens,
    "nested": nested,
}


def gradients(layers: Sequence[nn.Module]) -> dict[str, Tensor]:
    """Gradients of all parameters by name; zeros where none came."""
    return {
        f"grad:{name}_{i}": torch.zeros_like(param) if param.grad is None else param.grad.detach().clone()
        for i, layer in enumerate(layers)
        for name, param in layer.named_parameters()
    }
