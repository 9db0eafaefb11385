"""Run `choose_mesh` at several points; no communication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.grading.plain_clusters import make_cluster
from course_lib.grading.probe import Probe


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Call the answer once a point, each time with its own model and cluster."""
    del inputs, probe
    points = params["points"]
    return {"answers": [impl(dict(p["model"]), make_cluster(p["cluster"]), p["world_size"]) for p in points]}
