"""Train one step on micro-batches: impl(ddp, microbatches, loss_fn, num_samples) with a supplied wrapper.

params: model, sizes (samples of each micro-batch, a list per rank), ddp (the text of the wrapper). Marks:
"one begins", "one ends" around this rank's largest micro-batch alone; "begins", "ends" around the call.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from course_grader.inside.probe import Probe
from course_grader.inside.toy_models import LEARNING_RATE, build_toy, gradients_of, state_of, trainable

_SUPPLIED = str(Path(__file__).parents[1] / "supplied_ddp.py")  # not there in the judge's sandbox


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return gradients and the weights after one step of SGD."""
    sizes = params["sizes"][probe.rank]
    microbatches = list(zip(inputs["x"].split(sizes), inputs["y"].split(sizes), strict=True))
    _measure_one(params, inputs, microbatches[sizes.index(max(sizes))], probe)
    total, before = (sum(sum(row[skip:]) for row in params["sizes"]) for skip in (0, 1))
    model = build_toy(params["model"], inputs)
    ddp = _supplied_ddp(params["ddp"])(model)
    start = {name: tensor.clone() for name, tensor in state_of(model).items()}
    impl(ddp, microbatches[:0:-1], mse_loss, before)  # a step before, on fewer samples, leaves no trace
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(trainable(model), lr=LEARNING_RATE)
    optimizer.zero_grad()
    probe.mark("begins")
    impl(ddp, microbatches, mse_loss, total)
    probe.mark("ends")
    out = {f"grad:{name}": grad for name, grad in gradients_of(model).items()}
    optimizer.step()
    return out | {f"{name} after a step": tensor for name, tensor in state_of(model).items()}


def _measure_one(
    params: dict[str, Any], inputs: dict[str, Tensor], microbatch: tuple[Tensor, Tensor], probe: Probe
) -> None:
    """Forward and backward of this rank's largest micro-batch, for the memory bound."""
    model = build_toy(params["model"], inputs)
    probe.mark("one begins")
    mse_loss(model(microbatch[0]), microbatch[1]).backward()
    probe.mark("one ends")


def _supplied_ddp(text: str) -> Callable[[nn.Module], nn.Module]:
    namespace: dict[str, Any] = {"__name__": "course_grader.inside.supplied_ddp", "__file__": _SUPPLIED}
    exec(compile(text, _SUPPLIED, "exec"), namespace)
    wrapper: Callable[[nn.Module], nn.Module] = namespace["SuppliedDDP"]
    return wrapper
