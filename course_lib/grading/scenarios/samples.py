"""Call an answer at many points, each twice; no communication.

Options: positional (a point is a list of arguments; else a dict of them); clusters (names of arguments that
are plain descriptions of clusters and reach the answer as a `Cluster`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.grading.plain_clusters import make_cluster
from course_lib.grading.pointwise import answers_at
from course_lib.grading.probe import Probe


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return "answers", one a point."""
    del inputs, probe
    options = params.get("options", {})
    clusters = options.get("clusters", ())

    def ask(point: Any) -> Any:
        if options.get("positional"):
            return impl(*point)
        return impl(**{k: make_cluster(v) if k in clusters else v for k, v in point.items()})

    return {"answers": answers_at(ask, params["points"])}
