"""Run `owner_fsdp_backward` in a rank, after a forward that the check supplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch import Tensor

from course_lib.grading.fsdp_toys import (
    MarkedUnit,
    copies_of_shards,
    end,
    loss_gradient,
    sharded_units,
    still_whole,
)
from course_lib.grading.probe import Probe


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return what this rank keeps after one step."""
    units = sharded_units(params, inputs, probe)
    grad = loss_gradient(inputs, supplied_forward(units, inputs["x"]))
    probe.mark("begins")
    impl(units, grad, params["lr"])
    end(probe)
    return {**still_whole(units), **copies_of_shards(units)}


def supplied_forward(units: list[MarkedUnit], x: Tensor) -> Tensor:
    """The exercise before this one."""
    for unit in units:
        is_owner = dist.get_rank() == unit.owner
        unit.full = unit.shard.clone() if is_owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
        unit.full = None
    return x
