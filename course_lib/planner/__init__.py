"""Choose the layout of a training run: enumerate, prune by exact memory, price, rank, explain.

No torch: `cost.memory` and `cost.peak` say what fits, `cost.step_time` what it costs, and the reasons are
kept. Lab 12. Production teams search with profiles of their own kernels; what this search says is the
interval in which its predictions lay on published runs.
"""

from course_lib.planner.request import Request
from course_lib.planner.search import Plan, plan

__all__ = ["Plan", "Request", "plan"]
