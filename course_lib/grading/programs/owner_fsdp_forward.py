"""Run `owner_fsdp_forward` in a rank, on a chain of units that owners keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.grading.fsdp_toys import (
    copies_of_shards,
    end,
    sharded_units,
    still_whole,
)
from course_lib.grading.probe import Probe


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return this rank's output and what it keeps."""
    units = sharded_units(params, inputs, probe)
    probe.mark("begins")
    out = impl(units, inputs["x"])
    end(probe)
    return {"output": out, **still_whole(units), **copies_of_shards(units)}
