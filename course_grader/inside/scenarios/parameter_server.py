"""Call an answer that plays a parameter server: impl(weights, gradient, arrivals, lr), one process.

Least squares, one block of rows a worker. It is called once before, with other weights: that leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_grader.inside.probe import Probe


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the path and the staleness."""
    del probe
    rows, targets = inputs["rows"], inputs["targets"]

    def gradient(worker: int, weights: Tensor) -> Tensor:
        residual = rows[worker] @ weights - targets[worker]
        return rows[worker].T @ residual / len(residual)

    impl(inputs["weights"] + 1, gradient, list(params["arrivals"]), params["lr"])
    out = impl(inputs["weights"], gradient, list(params["arrivals"]), params["lr"])
    if not (isinstance(out, tuple | list) and len(out) == 2):
        return {"path": f"{out!r:.80}", "staleness": None}
    path, staleness = out
    return {"path": path, "staleness": staleness.tolist() if isinstance(staleness, Tensor) else staleness}
