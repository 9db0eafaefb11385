"""What a toy is trained on with a sharded or an offloaded optimizer: inner optimizers, losses, weights.

The model, its parameters and the inner optimizer are plain data of the case: `params` holds "model" (options
of ToyNet), "optimizer" (a key of INNER), "microbatches" (backwards before a step) and "optional_from" (the
first step that uses the optional layer).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import mse_loss
from torch.optim import Optimizer

from course_grader.exercise import Array
from course_grader.inside.toy_models import ToyNet

STEPS = 3
SAMPLES = 3  # of a rank in a micro-batch
INNER: dict[str, Callable[..., Optimizer]] = {
    "Adam": partial(torch.optim.Adam, lr=0.05, eps=0.1),
    "SGD with momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "SGD": partial(torch.optim.SGD, lr=0.02),
}
STATES = {"Adam": 2, "SGD with momentum": 1, "SGD": 0}  # values of state a parameter


def make_inner(name: str, tensors: Iterable[Tensor]) -> Optimizer:
    """Build the inner optimizer of that name around tensors."""
    return INNER[name](list(tensors))


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
