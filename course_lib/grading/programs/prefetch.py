"""Run `prefetched_step` in a rank: forward and backward of a chain of sharded units."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from course_lib.grading.fsdp_toys import (
    MOST_WHOLE,
    copies_of_shards,
    end,
    gradients_of_shards,
    loss_gradient,
    sharded_units,
    still_whole,
)
from course_lib.grading.probe import Probe


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the output, the gradients of what this rank keeps, and what it keeps."""
    units = sharded_units(params, inputs, probe)
    probe.mark("begins")
    out = impl(units, inputs["x"], partial(loss_gradient, inputs), params["depth"])
    end(probe)
    kept = {**gradients_of_shards(units), **still_whole(units), **copies_of_shards(units)}
    return {"output": out, **kept, MOST_WHOLE: max(unit.most_whole for unit in units)}
