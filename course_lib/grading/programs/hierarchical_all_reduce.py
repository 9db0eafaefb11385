"""Run `hierarchical_all_reduce_` in a rank, with groups and ring collectives that the check supplies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.grading.probe import Probe
from course_lib.grading.programs.ring_all_reduce import (
    supplied_all_gather,
    supplied_all_reduce_,
    supplied_reduce_scatter,
)
from course_lib.grading.ring_groups import in_memory, make_group


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Sum over m servers of k ranks into a copy, return it."""
    k, n = params["server_size"], probe.world_size
    inside = make_group([range(first, first + k) for first in range(0, n, k)], probe)
    across = make_group([range(place, n, k) for place in range(k)], probe)
    tensor, memory = in_memory(inputs["tensor"])
    impl(tensor, inside, across, supplied_reduce_scatter, supplied_all_gather, supplied_all_reduce_)
    return {"tensor": tensor, "memory": memory}
