"""Run `BucketedDDP` in a rank: wrap a model with a bucket size, train two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from course_lib.grading.probe import Probe
from course_lib.grading.toys import build_toy, mark_last_gradient, train_wrapped


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return outputs, gradients of both steps, and the final weights and buffers."""
    model = build_toy(params["model"], inputs)
    mark_last_gradient(model, probe)

    def wrap(module: nn.Module) -> Any:
        return impl(module, params["bucket_bytes"])

    return train_wrapped(wrap, model, params, inputs, probe)
