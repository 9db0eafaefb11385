"""Run `mean_gradient` in a rank: equal weights everywhere, this rank's rows of the batch."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.grading.probe import Probe


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Build the model from its weights, call the answer once, name its gradients after the parameters."""
    del probe
    model = _model(params["widths"])
    weights = {name: inputs[name] for name in model.state_dict()}
    model.load_state_dict(weights)
    grads = impl(model, nn.functional.mse_loss, inputs["x"], inputs["y"])
    out = _by_name(grads, model)
    for name, weight in model.state_dict().items():
        out[f"{name} of the model after the call"] = weight
    return out


def _model(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width_in, width_out in pairwise(widths):
        layers += [nn.Linear(width_in, width_out, dtype=torch.float64), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def _by_name(grads: Any, model: nn.Module) -> dict[str, Any]:
    """Gradients under their parameters' names; where one is missing, words for the report."""
    names = [name for name, _ in model.named_parameters()]
    if not isinstance(grads, list | tuple):
        return {f"grad:{name}": f"no list of gradients, but a {type(grads).__name__}" for name in names}
    if len(grads) != len(names):
        words = f"a list of {len(grads)} gradients for {len(names)} parameters"
        return {f"grad:{name}": words for name in names}
    return {f"grad:{name}": grad for name, grad in zip(names, grads, strict=True)}
