"""The order and clock parts of prefetching: what is on the wire while a unit computes, and its worth.

The step is replayed on clusters whose link is chosen for it: inside a server a gather takes half as long as a
unit's forward, across servers twice as long. Verdict side of lab 05 only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from course_lib.cost.cluster import uniform
from course_lib.grading.exercise import Case, Part, RankData
from course_lib.grading.fsdp_oracle import PARAMETERS, moved, sizes
from course_lib.grading.measure import left_in_flight
from course_lib.grading.parts.clock import PEAK, matmuls_only
from course_lib.grading.toy_oracle import collectives, events_between
from course_lib.replay import replay
from course_lib.trace import Event, Launch, Mark, RankTrace, Trace, Wait
from course_lib.trace.events import POLLED

LINKS = {"inside a server": 0.5, "across servers": 2.0}  # a gather over a forward
HIDDEN = 0.8  # share of what can be hidden that must be


def order_part(case: Case, got: list[RankData]) -> Part:
    """Judge, each time a unit begins to compute, what has been launched and what was awaited."""
    for rank, data in enumerate(got):
        events = events_between(data.traced, "begins", "ends")
        problem = _polled(events) or _unawaited(events) or _gathers(case, events) or _reductions(events)
        if problem:
            return Part("order", False, f"{problem[:-1]} on rank {rank}.")
    depth = case.params["depth"]
    return Part(
        "order", True, f"{depth} gathers ahead of each unit, no reduction awaited before the next backward"
    )


def _polled(events: Sequence[Event]) -> str:
    polls = any(isinstance(e, Mark) and e.name == POLLED for e in events)
    return (
        "calls must be awaited with wait(), not polled with is_completed(); it was polled." if polls else ""
    )


def _unawaited(events: Sequence[Event]) -> str:
    left = left_in_flight(events)
    return f"every call must be awaited before the end; {len(left)} of {left[0]} were not." if left else ""


def _gathers(case: Case, events: Sequence[Event]) -> str:
    """For each unit: bytes of gathers launched when it computes, and whether one is still in flight."""
    depth, every = case.params["depth"], sizes(case)
    last = len(every) - 1
    turn = [("forward", i) for i in range(last + 1)] + [("backward", i) for i in range(last, -1, -1)]
    for phase, i in turn:
        at = _mark(events, f"{phase} {i}")
        if at is None or depth == 0:
            continue
        ahead = range(i + 1, min(last, i + depth) + 1) if phase == "forward" else range(max(0, i - depth), i)
        needed = sum(every[: i + 1]) if phase == "forward" else sum(every) + sum(every[i:last])
        calls = [c for c in collectives(events[:at]) if c.op in PARAMETERS]
        waited = {e.launch_id for e in events[:at] if isinstance(e, Wait)}
        launched = sum(moved(call, case.world_size) for call in calls)
        if launched < needed + sum(every[j] for j in ahead):
            names = " and ".join(str(j) for j in (ahead if phase == "forward" else reversed(ahead)))
            return (
                f"when unit {i} begins its {phase}, the gather of unit {names} must be launched; it was not."
            )
        if ahead and all(call.id in waited for call in calls):
            return f"when unit {i} begins its {phase}, the next gather must be in flight; it was awaited."
    return ""


def _reductions(events: Sequence[Event]) -> str:
    for at, call in enumerate(events):
        if not isinstance(call, Launch) or call not in collectives([call]) or call.op in PARAMETERS:
            continue
        later = events[at:]
        wait = next(i for i, e in enumerate(later) if isinstance(e, Wait) and e.launch_id == call.id)
        backward = next(
            (i for i, e in enumerate(later) if isinstance(e, Mark) and e.name.startswith("backward")), None
        )
        if backward is not None and wait < backward:
            return (
                f"a {call.op} must not be awaited before the next unit's backward has begun, so that it "
                "travels meanwhile; it was."
            )
    return ""


def _mark(events: Sequence[Event], name: str) -> int | None:
    return next((i for i, e in enumerate(events) if isinstance(e, Mark) and e.name == name), None)


def clock_part(case: Case, got: list[RankData]) -> Part:
    """Judge how much communication the step hides, of what could be hidden behind its matmuls."""
    steps = [_step(data.traced) for data in got]
    trace = Trace([matmuls_only(step) for step in steps])
    free = replay(trace, uniform(trace.world_size, 0.0, 1e30), efficiency=PEAK)
    num_units, n = len(case.params["kinds"]), case.world_size
    compute_s = free.ranks[0].compute_s
    forward_s = compute_s / num_units / 4  # backward: a second forward, and twice as much
    texts = []
    for where, ratio in LINKS.items():
        gather_s = ratio * forward_s
        cluster = uniform(n, 0.0, sizes(case)[0] * (n - 1) / n / gather_s)
        run = replay(trace, cluster, efficiency=PEAK)
        total_s = max(r.communication_s for r in run.ranks)
        hidden_s = total_s - max(r.exposed_s for r in run.ranks)
        possible_s = min(compute_s, total_s - 2 * gather_s)  # all but the first gather, the last reduction
        share = max(0.0, hidden_s / possible_s)
        if share < HIDDEN:
            text = (
                f"on a simulated cluster, {where} (a gather takes {ratio:g} times as long as a unit's "
                f"forward), at least {HIDDEN:.0%} of the communication that can be hidden must be; got "
                f"{share:.0%}. Launch the next gather before the unit computes, and wait for a reduction "
                "only when the next has computed."
            )
            return Part("clock", False, text)
        texts.append(f"{share:.0%} {where}")
    return Part("clock", True, f"hides {' and '.join(texts)} of what can be hidden, in simulated time")


def _step(trace: RankTrace) -> RankTrace:
    """The step without polls, which a replay cannot repeat."""
    events: list[Event] = [e for e in events_between(trace, "begins", "ends") if not isinstance(e, Mark)]
    return replace(trace, events=events)
