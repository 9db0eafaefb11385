"""Judge's side of `prefetch`: what is on the wire while a unit computes, and what that is worth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from course_grader.labs.lab05_fsdp_hsdp import _unit_chain as chain
from course_grader.parts.memory import CameAhead
from course_grader.parts.overlap import Exchange
from course_grader.types import Case, Observation, Why
from course_lib.replay import Replay
from course_lib.trace import Launch, Mark, Trace, Wait

PARAMETERS = (*CameAhead.ops, "send")


def gathers(seen: Observation, rank: int) -> Why | None:
    """When a unit begins to compute: are the gathers of the next `depth` units launched, one in flight?"""
    trace = seen.traces[rank].between("begins", "ends")
    for turn, due, ahead in _turns(seen.case):
        if turn not in {mark.name for mark in trace.marks}:
            continue  # a backward that nothing needs
        before = trace.between(None, turn)
        calls = [call for call in before.launches() if call.op in PARAMETERS]
        launched = sum(call.moved_bytes for call in calls)
        phase, _, unit = turn.partition(" ")
        for other, size in ahead:
            due += size
            if launched < due:
                return Why(
                    f"when unit {unit} begins its {phase}, the gather of unit {other} must be launched",
                    f"it was not on rank {rank}",
                )
        waited = {wait.launch_id for wait in before.waits()}
        if ahead and all(call.id in waited for call in calls):
            return Why(
                f"when unit {unit} begins its {phase}, the next gather must be in flight",
                f"it was awaited on rank {rank}",
            )
    return None


def _turns(case: Case) -> Iterator[tuple[str, int, list[tuple[int, int]]]]:
    """(mark, bytes gathered for this turn and those before, the next units with the bytes of each)."""
    depth, every = case.params["depth"], chain.sizes(case)
    last = len(every) - 1
    for i in range(last + 1):
        ahead = range(i + 1, min(last, i + depth) + 1)
        yield f"forward {i}", sum(every[: i + 1]), [(j, every[j]) for j in ahead]
    for i in range(last, -1, -1):
        ahead = range(i - 1, max(0, i - depth) - 1, -1)
        yield f"backward {i}", sum(every) + sum(every[i:last]), [(j, every[j]) for j in ahead]


def reductions(seen: Observation, rank: int) -> Why | None:
    """Is each reduction on its way while the next unit computes?"""
    events = seen.traces[rank].between("begins", "ends").events
    for at, call in enumerate(events):
        if not isinstance(call, Launch) or call.op in (*PARAMETERS, "new_group"):
            continue
        later = events[at:]
        waited = _first(isinstance(e, Wait) and e.launch_id == call.id for e in later)
        backward = _first(isinstance(e, Mark) and e.name.startswith("backward") for e in later)
        if backward is not None and waited is not None and waited < backward:
            return Why(
                f"a {call.op} must not be awaited before the next unit's backward has begun, so that it "
                "travels meanwhile",
                f"it was on rank {rank}",
            )
    return None


def _first(holds: Iterable[bool]) -> int | None:
    return next((i for i, it_does in enumerate(holds) if it_does), None)


def _gather_bytes(case: Case, step: Trace) -> float:
    """Bytes that a rank sends to gather a unit; all units are equal where the clock is asked."""
    del step
    return chain.sizes(case)[0] * (case.world_size - 1) / case.world_size


def _forward_s(case: Case, free: Replay) -> float:
    """Seconds of a unit's forward; its backward is a second forward and twice as much."""
    return free.ranks[0].compute_s / len(case.params["kinds"]) / 4


def _hideable_s(free: Replay, total_s: float, gather_s: float, forward_s: float) -> float:
    """All but the first gather and the last reduction."""
    del forward_s
    return min(free.ranks[0].compute_s, total_s - 2 * gather_s)


GATHER = Exchange(
    words="a gather",
    sent_bytes=_gather_bytes,
    meanwhile="a unit's forward",
    meanwhile_s=_forward_s,
    hideable="the communication that can be hidden",
    hideable_s=_hideable_s,
)
