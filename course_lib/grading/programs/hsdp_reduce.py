"""Run `hsdp_reduce` in a rank, on a mesh that the check makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.comm.mesh import make_mesh
from course_lib.grading.probe import Probe


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return this rank's shard of the mean gradient.

    Other gradients come before and after it, so that what is kept between calls shows: one of twice the
    length, and one that needs no padding where this one does.
    """
    mesh = make_mesh(dp_replicate=params["dp_replicate"], dp_shard=params["dp_shard"])
    grad = inputs["grad"]
    impl(torch.cat([grad + 1, grad + 2]), mesh)
    impl(torch.cat([grad + 1, grad.new_ones(-len(grad) % params["dp_shard"])]), mesh)
    probe.mark("begins")
    shard = impl(grad.clone(), mesh)
    probe.mark("ends")
    impl(grad + 3, mesh)
    return {"shard": shard}
