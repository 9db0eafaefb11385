"""Train a toy with a sharded optimizer, as programs of lab 04 do, and in one process, as its oracles do.

The model, its parameters and the inner optimizer are plain data of the case: `params` holds "model" (options
of ToyNet), "optimizer" (a key of INNER), "microbatches" (backwards before a step) and "optional_from" (the
first step that uses the optional layer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

from course_lib.grading.exercise import Array
from course_lib.grading.probe import Probe
from course_lib.grading.toys import ToyNet, another_toy, build_toy, mark_last_gradient, trainable

STEPS = 3
SAMPLES = 3  # of a rank in a micro-batch
INNER: dict[str, Callable[..., Optimizer]] = {
    "Adam": partial(torch.optim.Adam, lr=0.05, eps=0.1),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "SGD": partial(torch.optim.SGD, lr=0.1),
}
STATES = {"Adam": 2, "SGD with momentum": 1, "SGD": 0}  # values of state a parameter


def make_inner(name: str, tensors: Iterable[Tensor]) -> Optimizer:
    """Build the inner optimizer of that name around tensors."""
    return INNER[name](list(tensors))


def train_sharded(
    impl: Callable[..., Any], params: Mapping[str, Any], inputs: Mapping[str, Tensor], probe: Probe
) -> dict[str, Tensor]:
    """Train STEPS steps with the student's optimizer; return the weights after each.

    Another model's optimizer is made before, and never used.

    Marks: "built" (model, no optimizer), "constructed", "last gradient" in every backward, and of step t
    "backward t" and "end t" (after step and zero_grad).
    """
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
        seen |= weights_of(model, step)  # before zero_grad: step leaves the new parameters on every rank
        optimizer.zero_grad()
        probe.mark(f"end {step}")
    probe.settle()
    return {name: torch.from_numpy(array) for name, array in seen.items()}


def loss_of(
    model: ToyNet,
    data: Mapping[str, Tensor],
    step: int,
    micro: int,
    num_micro: int,
    *,
    with_optional: bool = True,
) -> Tensor:
    """Return this micro-batch's part of the mean loss of a rank's step."""
    key = f"{step}.{micro}"
    return mse_loss(model(data[f"x{key}"], with_optional=with_optional), data[f"y{key}"]) / num_micro


def weights_of(model: ToyNet, step: int) -> dict[str, Array]:
    """Return a copy of every parameter under "name after step t"."""
    return {
        f"{name} after step {step}": param.detach().numpy().copy() for name, param in model.named_parameters()
    }
