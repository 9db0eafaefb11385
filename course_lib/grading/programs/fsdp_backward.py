"""Run `fsdp_backward` in a rank, after a forward that the check supplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.grading.fsdp_toys import (
    copies_of_shards,
    end,
    gradients_of_shards,
    loss_gradient,
    sharded_units,
    still_whole,
)
from course_lib.grading.probe import Probe
from course_lib.grading.programs.fsdp_forward import supplied_forward


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the gradients of what this rank keeps, and what it keeps."""
    units = sharded_units(params, inputs, probe)
    grad = loss_gradient(inputs, supplied_forward(units, inputs["x"]))
    probe.mark("begins")
    impl(units, grad)
    end(probe)
    return {**gradients_of_shards(units), **still_whole(units), **copies_of_shards(units)}
