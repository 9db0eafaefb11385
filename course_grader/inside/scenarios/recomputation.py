"""Run an answer that computes again what it did not keep, on a chain of small layers.

Options: kind: "calls", impl(function, *args, **kwargs), as `params["use"]` says; "segments", impl(layers, x,
segments, checkpoint) with a checkpoint that works and is counted; "policy", impl(operation) for the library's
checkpoint. Marks: "begins", "forward ends", "ends".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_grader.exercise import GateFailed
from course_grader.inside.probe import Probe
from course_grader.inside.recompute_toy_models import USES, gradients, layers_of
from course_grader.why import Why
from course_lib.parallel.activation_checkpoint import checkpoint, function

Impl = Callable[..., Any]


class OpenHooks:
    """`saved_tensors_hooks` for the checkpoint that is supplied: to answers torch's own name is closed."""

    push = staticmethod(torch._C._autograd._push_saved_tensors_default_hooks)
    pop = staticmethod(torch._C._autograd._pop_saved_tensors_default_hooks)

    def __init__(self, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> None:
        self.pack, self.unpack = pack, unpack

    def __enter__(self) -> None:
        self.push(self.pack, self.unpack)

    def __exit__(self, *_: object) -> None:
        self.pop()


vars(function)["saved_tensors_hooks"] = OpenHooks


def program(impl: Impl, params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe) -> dict[str, Any]:
    """Return the output, all gradients, how often each layer ran, and the next random number."""
    layers = layers_of(params, inputs)
    x = inputs["x"].detach().requires_grad_()
    for tensor in [*inputs.values(), *(p for layer in layers for p in layer.parameters())]:
        tensor.detach().sum()  # the trace has seen what exists before "begins"
    lengths: list[int] = []
    said: dict[str, Any] = {}
    torch.manual_seed(params["draw"])
    probe.mark("begins")
    kind = params["options"]["kind"]
    if kind == "calls":
        out = USES[params["use"]](impl, layers, x, inputs)
    elif kind == "segments":
        out = impl(layers, x, params["segments"], _counted(layers, lengths))
    else:
        out = x
        for layer in layers:
            out = checkpoint(layer, out, save=partial(_keeps, impl, said))
        if all(answer is None for answer in said.values()):
            impl(next(iter(said)))  # raises: not written
    probe.mark("forward ends")
    if isinstance(out, Tensor) and out.requires_grad and out.shape == inputs["grad_out"].shape:
        _backward(out, inputs["grad_out"])
    probe.mark("ends")
    return {
        "out": out.detach().clone() if isinstance(out, Tensor) else out,
        "grad:x": torch.zeros_like(x) if x.grad is None else x.grad.detach().clone(),
        **gradients(layers),
        "next random number": torch.rand(1),
        "runs": [layer.num_runs for layer in layers],
        "segments": lengths,
        "kept": sorted(name for name, answer in said.items() if answer),
    }


def _backward(out: Tensor, grad: Tensor) -> None:
    try:
        out.backward(grad)
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise GateFailed(
            "runs",
            Why(
                "backward of a call must stop at its own inputs",
                "it went on into the graph of the calls before, which then came a second time",
                "Detach the kept inputs, and give each its requires_grad again. (torch's advice to specify "
                "retain_graph=True does not help here.)",
            ),
        ) from error


def _keeps(policy: Impl, said: dict[str, Any], name: str) -> bool:
    """Ask a policy, and note what it said. None is no: so says a regular expression that does not match."""
    try:
        said[name] = policy(name)
    except GateFailed as failed:
        if failed.gate != "implemented":
            raise
        said[name] = None
    return bool(said[name])


def _counted(layers: list[Any], lengths: list[int]) -> Impl:
    """A checkpoint that notes how many layers each call runs."""

    def counted(function: Impl, *args: Any, **kwargs: Any) -> Any:
        before = sum(layer.num_runs for layer in layers)
        out = checkpoint(function, *args, **kwargs)
        lengths.append(sum(layer.num_runs for layer in layers) - before)
        return out

    return counted
