"""The clock part of overlap: how much communication a traced step hides on simulated clusters.

The step is replayed on clusters whose link is chosen for it: inside a server communication takes half as long
as backward, across servers twice as long. What can be hidden is the shorter of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from course_lib.cost.cluster import Cluster, uniform
from course_lib.grading.core.types import Case, Part, Seen
from course_lib.grading.parts.clock import PEAK, matmuls_only
from course_lib.grading.parts.common import Window
from course_lib.replay import Replay, replay
from course_lib.trace import RankTrace, Trace
from course_lib.trace.events import Launch, Mark

LINKS = {"inside a server": 0.5, "across servers": 2.0}  # communication over backward


@dataclass(frozen=True, kw_only=True)
class Hides:
    """In simulated time, a step hides at least `share` of the communication that backward can hide.

    Attributes:
        window: one training step, from forward to synchronised.
        why: what a right answer does.
    """

    window: Window
    why: str
    share: float = 0.5
    applies: Callable[[Case], bool] = lambda case: case.world_size > 1
    part: str = "clock"
    reads_trace: bool = True

    def check(self, seen: Seen) -> Part | None:
        """The first of the two clusters on which too little is hidden speaks."""
        if not self.applies(seen.case):
            return None
        trace = Trace([_step(trace, self.window) for trace in seen.traces])
        free = replay(trace, uniform(trace.world_size, 0.0, 1e30), efficiency=PEAK)
        texts = []
        for where, ratio in LINKS.items():
            share = _hidden_share(trace, _backward_s(free), ratio)
            if share < self.share:
                text = (
                    f"on a simulated cluster, {where} (communication takes {ratio:g} times as long as "
                    f"backward), at least {self.share:.0%} of what backward can hide must be hidden; got "
                    f"{max(0.0, share):.0%}. {self.why}"
                )
                return Part(self.part, False, text)
            texts.append(f"{share:.0%} {where}")
        words = f"hides {' and '.join(texts)} of what backward can hide, in simulated time"
        return Part(self.part, True, words)


def _step(trace: RankTrace, window: Window) -> RankTrace:
    """The step with its matmuls as the only compute, and without marks and polls.

    Simplification: in a toy model the copies into buckets would take as long as the layers, and hide
    communication that real layers could not.
    """
    step = trace.between(window.start, window.end)
    return matmuls_only(replace(step, events=[e for e in step.events if not isinstance(e, Mark)]))


def _hidden_share(trace: Trace, backward_s: float, ratio: float) -> float:
    run = replay(trace, _cluster(trace, backward_s * ratio), efficiency=PEAK)
    total_s = max(r.communication_s for r in run.ranks)
    possible_s = min(backward_s, total_s)
    hidden_s = total_s - max(r.exposed_s for r in run.ranks)
    return hidden_s / possible_s if possible_s else 1.0


def _backward_s(run: Replay) -> float:
    spans = run.ranks[0].spans
    return sum(s.end_s - s.start_s for s in spans if s.lane == "compute" and s.phase == "backward")


def _cluster(trace: Trace, seconds: float) -> Cluster:
    """Devices whose link makes all of the step's collectives together take `seconds`."""
    n = trace.world_size
    calls: Sequence[Launch] = trace[0].of(Launch)
    sent = sum(2 * (n - 1) / n * c.bytes_ for c in calls if c.op == "all_reduce")
    return uniform(n, 0.0, max(sent, 1.0) / seconds)
