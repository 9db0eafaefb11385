"""Run `NaiveDDP` in a rank: wrap a model, train two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.grading.probe import Probe
from course_lib.grading.toys import build_toy, train_wrapped


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return outputs, gradients of both steps, and the final weights and buffers."""
    model = build_toy(params["model"], inputs)
    return train_wrapped(impl, model, params, inputs, probe)
