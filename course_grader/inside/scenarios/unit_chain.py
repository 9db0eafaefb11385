"""Run an answer on a chain of small units of which this rank has its shards (or the units that it owns).

Options: phase: "forward", impl(units, x); "backward", impl(units, grad, *arguments) after a supplied forward;
"both", impl(units, x, loss_grad, *arguments). arguments: params passed on. gradients: the gradients of the
shards are handed back. Marks: "begins", "forward i", "backward i", "ends".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from course_grader.inside.fsdp_toy_models import (
    MOST_WHOLE,
    MarkedUnit,
    copies_of_shards,
    end,
    gradients_of_shards,
    loss_gradient,
    sharded_units,
    still_whole,
)
from course_grader.inside.probe import Probe


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the output, the gradients if asked for, what this rank keeps, and what is still whole."""
    options = params["options"]
    units = sharded_units(params, inputs, probe)
    arguments = [params[name] for name in options.get("arguments", ())]
    out: dict[str, Any] = {}
    if options["phase"] == "forward":
        probe.mark("begins")
        out["output"] = impl(units, inputs["x"])
    elif options["phase"] == "backward":
        grad = loss_gradient(inputs, _supplied_forward(params, units, inputs["x"]))
        probe.mark("begins")
        impl(units, grad, *arguments)
    else:
        probe.mark("begins")
        out["output"] = impl(units, inputs["x"], partial(loss_gradient, inputs), *arguments)
    end(probe)
    if options.get("gradients"):
        out |= gradients_of_shards(units)
    out[MOST_WHOLE] = max(unit.most_whole for unit in units)
    return {**out, **still_whole(units), **copies_of_shards(units)}


def _supplied_forward(params: dict[str, Any], units: list[MarkedUnit], x: Tensor) -> Tensor:
    """The answer to the exercise before."""
    by_owners = params["placement"] == "owners"
    for unit in units:
        if by_owners:
            is_owner = dist.get_rank() == unit.owner
            unit.full = unit.shard.clone() if is_owner else unit.shard.new_empty(unit.numel)
            dist.broadcast(unit.full, src=unit.owner)
        else:
            unit.full = unit.shard.new_empty(dist.get_world_size() * len(unit.shard))
            dist.all_gather_into_tensor(unit.full, unit.shard)
        x = unit.forward(x)
        if by_owners or unit is not units[-1]:
            unit.full = None
    return x
