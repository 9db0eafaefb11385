"""Let an answer book runs on a cluster that is a table, and count them.

A point holds the choices, and for every setting its memory and the MFU that a run of it would reach.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.cost.trials import Trials
from course_lib.grading.pointwise import answers_at
from course_lib.grading.probe import Probe

FIELDS = ("microbatch_sizes", "recomputes", "shard_sizes", "limit_bytes", "max_runs")


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return "answers", one a point: the setting that was chosen, and how many runs were booked."""
    del inputs, probe

    def ask(point: dict[str, Any]) -> dict[str, Any]:
        trials = _trials(point)
        chosen = impl(trials)
        setting = list(chosen) if isinstance(chosen, (list, tuple)) else chosen
        return {"setting": setting, "runs": len(trials.tried)}

    return {"answers": answers_at(ask, params["points"])}


def _trials(point: dict[str, Any]) -> Trials:
    rows = point["settings"]
    return Trials(
        **{name: point[name] for name in FIELDS},
        memory={(size, recompute, shard): memory for size, recompute, shard, memory, _ in rows},
        reached={(size, recompute, shard): mfu for size, recompute, shard, _, mfu in rows},
    )
