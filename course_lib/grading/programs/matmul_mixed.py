"""Run `matmul_mixed` on matrices of ones and on random ones; no communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.grading.probe import Probe


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Round the inputs to bfloat16 (they are exact there) and call the answer once a point."""
    del probe
    out = {}
    for i, point in enumerate(params["points"]):
        a, b = inputs[f"a{i}"].to(torch.bfloat16), inputs[f"b{i}"].to(torch.bfloat16)
        out[f"c{i}"] = impl(a, b, getattr(torch, point["accumulate_dtype"]), point["tile"])
    return out
