"""Groups of lab 02's exercises, as the programs make them in the ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from course_grader.inside.probe import Probe

AGAIN = {"second": 7, "third": 5, "fourth": 11}  # none is a world size: "did you average?" is not meant


def group_of(params: dict[str, Any], probe: Probe) -> tuple[Any, bool]:
    """Return (the group this rank works in, whether it takes part); None stands for the world."""
    if not params["groups"]:
        return None, True
    return make_group(params["groups"], probe), any(probe.rank in ranks for ranks in params["groups"])


def calls(name: str, call: Callable[[Tensor], Any], tensor: Tensor, params: dict[str, Any]) -> dict[str, Any]:
    """Return what the call gives; in a case that calls again, also that for 7, 5 and 11 times the tensor.

    Each call gets the same tensor with other values. All results are read after the last call, so a buffer
    that an answer uses again shows.
    """
    if not params.get("again"):
        return {name: call(tensor)}
    own = tensor.clone()
    results = {name: call(own)}
    for words, factor in AGAIN.items():
        own.copy_(tensor * factor)
        results[f"{name} of a {words} call"] = call(own)
    return results


def in_memory(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return (a copy of the tensor, another view of the copy's memory): what "in place" is judged by."""
    copy = tensor.clone()
    return copy, copy.view(copy.shape)


def make_group(groups: Sequence[Sequence[int]], probe: Probe) -> Any:
    """Make every group, on every rank, and return this rank's own (None if it is in none)."""
    mine = None
    for ranks in groups:
        made = dist.new_group(list(ranks))
        mine = made if probe.rank in ranks else mine
    return mine
