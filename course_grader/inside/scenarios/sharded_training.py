"""Train a small model three steps with the answer, a sharded optimizer: impl(params, make_optimizer).

Another model's optimizer is made before, and never used. Marks: "built" (model, no optimizer), "constructed",
"last gradient" in every backward, and of step t "backward t", "stepped t" and "end t" (after zero_grad).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_grader.exercise import Array
from course_grader.inside.probe import Probe
from course_grader.inside.toy_models import another_toy, build_toy, mark_last_gradient, trainable
from course_grader.inside.zero_toy_models import STEPS, loss_of, make_inner, weights_of


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the weights after each step."""
    make_optimizer = partial(make_inner, params["optimizer"])
    impl(trainable(another_toy(params["model"], inputs)), make_optimizer)  # must not matter
    model = build_toy(params["model"], inputs)
    for tensor in inputs.values():
        tensor.sum()  # the trace sees what exists before "built"
    probe.mark("built")
    mark_last_gradient(model, probe)
    optimizer = impl(trainable(model), make_optimizer)
    probe.mark("constructed")
    seen: dict[str, Array] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(params["microbatches"]):
            late = step >= params["optional_from"]
            loss_of(model, inputs, step, micro, params["microbatches"], with_optional=late).backward()
        probe.mark(f"backward {step}")
        optimizer.step()
        probe.mark(f"stepped {step}")
        seen |= weights_of(model, step)  # before zero_grad: step leaves the new parameters on every rank
        optimizer.zero_grad()
        probe.mark(f"end {step}")
    probe.settle()
    return {name: torch.from_numpy(array) for name, array in seen.items()}
