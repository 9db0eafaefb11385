"""The clock part of overlap: how much communication a traced step hides on simulated clusters.

The step is replayed on clusters whose link is chosen for it: inside a server communication takes half as long
as backward, across servers twice as long. What can be hidden is the shorter of the two, less the last bucket,
which nothing follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from course_lib.cost.cluster import Cluster, uniform
from course_lib.grading.exercise import Part
from course_lib.replay import Efficiency, Replay, replay
from course_lib.trace import RankTrace, Trace
from course_lib.trace.events import Compute, Launch

LINKS = {"inside a server": 0.5, "across servers": 2.0}  # communication over backward
HIDDEN = 0.5  # share of what can be hidden that must be
PEAK = Efficiency(matmul=1.0, memory=1.0)


def clock_part(steps: Sequence[RankTrace]) -> Part:
    """Judge one traced training step of every rank; only its events, from forward to synchronised."""
    trace = Trace([matmuls_only(step) for step in steps])
    free = replay(trace, uniform(trace.world_size, 0.0, 1e30), efficiency=PEAK)
    backward_s = _backward_s(free)
    texts = []
    for where, ratio in LINKS.items():
        run = replay(trace, _cluster(trace, backward_s * ratio), efficiency=PEAK)
        total_s = max(r.communication_s for r in run.ranks)
        hidden_s = total_s - max(r.exposed_s for r in run.ranks)
        possible_s = min(backward_s, total_s)
        share = hidden_s / possible_s if possible_s else 1.0
        if share < HIDDEN:
            text = (
                f"on a simulated cluster, {where} (communication takes {ratio:g} times as long as backward), "
                f"at least {HIDDEN:.0%} of what backward can hide must be hidden; got {max(0.0, share):.0%}. "
                "Launch each bucket while backward still computes, and wait in sync_gradients only."
            )
            return Part("clock", False, text)
        texts.append(f"{share:.0%} {where}")
    return Part("clock", True, f"hides {' and '.join(texts)} of what backward can hide, in simulated time")


def matmuls_only(step: RankTrace) -> RankTrace:
    """The step with its matmuls as the only compute.

    Simplification: in a toy model the copies into buckets would take as long as the layers, and hide
    communication that real layers could not.
    """
    kept = [e for e in step.events if not isinstance(e, Compute) or e.flops]
    free = [replace(e, read_bytes=0, written_bytes=0) if isinstance(e, Compute) else e for e in kept]
    return replace(step, events=free)


def _backward_s(run: Replay) -> float:
    spans = run.ranks[0].spans
    return sum(s.end_s - s.start_s for s in spans if s.lane == "compute" and s.phase == "backward")


def _cluster(trace: Trace, seconds: float) -> Cluster:
    """Devices whose link makes all of the step's collectives together take `seconds`."""
    n = trace.world_size
    sent = sum(2 * (n - 1) / n * c.bytes_ for c in trace[0].of(Launch) if c.op == "all_reduce")
    return uniform(n, 0.0, max(sent, 1.0) / seconds)
