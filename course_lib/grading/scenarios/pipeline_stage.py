"""Call an answer on every rank of a pipeline, one stage a rank, with the actions of that rank.

impl(actions, module, inputs, targets, loss_fn, like, *arguments). Options: arguments (params passed on);
state (the weights afterwards are handed back, not the gradients). Marks: "begins", "ends". What the module
was asked for, in order, comes back as "ran".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.probe import Probe


class Stage(nn.Module):
    """tanh(x @ weight.T + bias), which notes every forward, and every gradient that comes to its output."""

    def __init__(self, weight: Tensor, bias: Tensor, ran: list[str]) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
        self._ran = ran

    def forward(self, x: Tensor) -> Tensor:
        """[samples, width] -> [samples, width]."""
        self._ran.append("F")
        out: Tensor = torch.tanh(x @ self.weight.t() + self.bias)
        if out.requires_grad:
            out.register_hook(lambda _: self._ran.append("B"))
        return out


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the loss, and gradients or weights; what ran, in order."""
    options = params.get("options", {})
    ran: list[str] = []
    stage = Stage(inputs["weight"], inputs["bias"], ran)
    shape = (params["samples"], params["width"])
    total = params["num_microbatches"] * shape[0]
    actions = [tuple(action) for action in params["actions"][probe.rank]]
    arguments = [params[name] for name in options.get("arguments", ())]

    def share(out: Tensor, target: Tensor) -> Tensor:
        loss: Tensor = (out - target).square().sum() / total
        return loss

    given = [list(inputs[name].unbind()) if name in inputs else [] for name in ("inputs", "targets")]
    probe.mark("begins")
    loss = impl(actions, stage, *given, share, torch.zeros(shape, dtype=torch.float64), *arguments)
    probe.mark("ends")
    found = {"loss": float(loss), "ran": "".join(ran)}
    if options.get("state"):
        return found | {name: param.detach().clone() for name, param in stage.named_parameters()}
    return found | {f"grad:{name}": _gradient(param) for name, param in stage.named_parameters()}


def _gradient(param: nn.Parameter) -> Tensor:
    """Zeros where no gradient came."""
    return torch.zeros_like(param) if param.grad is None else param.grad.detach().clone()
