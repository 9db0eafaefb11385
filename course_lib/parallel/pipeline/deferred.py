"""Split a linear layer's backward: the input's gradient now, the weight's when the schedule says so.

The stage before waits for the input's gradient only. Asking autograd twice, `autograd.grad(out, x)` and later
`autograd.grad(out, weights)`, computes the input's gradients of all layers twice (37% more backward FLOPs on
an MLP of 4 layers). Here each linear notes what its weight's gradient needs, the input and the output's
gradient, and that product is computed later. Lab 09, bonus. Megatron's zero-bubble fork does the same with a
`WeightGradStore`; torch cuts the graph at each parameter (`pipelining/_backward.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WeightGrad = tuple[Tensor, Tensor | None, Tensor, Tensor]
"""weight [out, in], bias [out], input [..., in], output's gradient [..., out]."""


class WeightGradStore:
    """Collect what weight gradients need while backward is deferring them; `apply` computes one collection.

    Memory: the inputs and output gradients of every linear of a stage, until applied.
    """

    def __init__(self) -> None:
        self.collected: list[WeightGrad] | None = None

    @contextmanager
    def deferring(self) -> Iterator[list[WeightGrad]]:
        """Yield the list into which backwards inside put what they defer."""
        self.collected = []
        try:
            yield self.collected
        finally:
            self.collected = None


def apply(deferred: list[WeightGrad]) -> None:
    """Add deferred weight gradients to `.grad`, and run the parameters' hooks, as backward would."""
    if not deferred:  # a frozen stage
        return
    with torch.enable_grad():
        roots = [_run(_Product, *one) for one in deferred]
    deferred.clear()
    torch.autograd.backward(roots, [torch.zeros_like(root) for root in roots])


def defer_linears_(module: nn.Module) -> WeightGradStore:
    """Replace every nn.Linear inside by one whose weight gradient can wait; parameters and names stay.

    All other parameters (norms, embeddings) get their gradients with the input's: they cost next to nothing.
    Raises: ValueError for a linear that holds a part of its weight, as inside FSDP.
    """
    store = WeightGradStore()
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, DeferredLinear(child, store))
    return store


class DeferredLinear(nn.Module):
    """x @ weight.T + bias, with the linear's own parameters.

    Layout: x [..., in] -> [..., out].
    """

    def __init__(self, linear: nn.Linear, store: WeightGradStore) -> None:
        super().__init__()
        is_here = isinstance(linear.weight, nn.Parameter)  # in FSDP a stand-in
        if not is_here or tuple(linear.weight.shape) != (linear.out_features, linear.in_features):
            raise ValueError(
                "a linear whose weight gradient waits must hold its whole weight, "
                f"{[linear.out_features, linear.in_features]}; got {list(linear.weight.shape)}. "
                "With FSDP around a stage, take a schedule without I and W, such as 1F1B."
            )
        self.weight, self.bias = linear.weight, linear.bias
        self._store = store
        # Keeps the output in the graph where x is data. The weight itself stays out of it: backward would run
        # its hooks (a data-parallel wrapper's) although nothing has come yet.
        self._anchor = linear.weight.new_zeros((), requires_grad=True)

    def forward(self, x: Tensor) -> Tensor:
        return _run(_Linear, x, self._anchor, self)


def _run(function: type[torch.autograd.Function], *args: Any) -> Tensor:
    out: Tensor = function.apply(*args)
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, _anchor: Tensor, linear: DeferredLinear) -> Tensor:
        ctx.save_for_backward(x, linear.weight)
        ctx.linear = linear
        return F.linear(x, linear.weight, linear.bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        bias, store = ctx.linear.bias, ctx.linear._store
        if weight.requires_grad or (bias is not None and bias.requires_grad):
            needed = (weight, bias, x.detach(), grad.detach())  # detached: else the graph would live on
            if store.collected is None:
                apply([needed])
            else:
                store.collected.append(needed)
        return grad @ weight if ctx.needs_input_grad[0] else None, None, None


class _Product(torch.autograd.Function):
    """A root without a value, whose backward is the deferred product: hooks and traces see a backward."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor | None, x: Tensor, grad: Tensor) -> Tensor:
        ctx.save_for_backward(x, grad, bias)
        return weight.new_zeros(())

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        x, grad, bias = ctx.saved_tensors
        return *_products(x, grad, bias), None, None


def _products(x: Tensor, grad: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    rows = grad.flatten(0, -2)  # [tokens, out]
    return rows.t() @ x.flatten(0, -2), None if bias is None else rows.sum(0)
