"""Wrap a small model with the answer and train it two steps.

Options: arguments (params passed after the module); buckets (params["buckets"], names, are passed as lists of
parameters); mark_last_gradient. Marks: "built", "constructed", and of step t "step t begins",
"step t synchronised".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from course_grader.inside.probe import Probe
from course_grader.inside.toy_models import build_toy, mark_last_gradient, train_wrapped


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return outputs, gradients of both steps, and the final weights and buffers."""
    options = params.get("options", {})
    model = build_toy(params["model"], inputs)
    arguments = [params[name] for name in options.get("arguments", ())]
    if options.get("mark_last_gradient"):
        mark_last_gradient(model, probe)

    def wrap(module: nn.Module) -> Any:
        named = dict(module.named_parameters())
        buckets = [[named[name] for name in bucket] for bucket in params.get("buckets", ())]
        return impl(module, *arguments, *([buckets] if options.get("buckets") else []))

    return train_wrapped(wrap, model, params, inputs, probe)
