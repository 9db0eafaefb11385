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
    given = {name: tensor.to(torch.bfloat16) for name, tensor in inputs.items()}
    out = {}
    for i, point in enumerate(params["points"]):
        a, b = given[f"a{i}"], given[f"b{i}"]
        out[f"c{i}"] = impl(a, b, getattr(torch, point["accumulate_dtype"]), point["tile"])
    for name, tensor in given.items():
        inputs[name].copy_(tensor)  # differs from what was there if the answer wrote into it
    return out
