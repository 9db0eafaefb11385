"""Parts that read the trace: counts, bytes, memory, order. Each says the bound, what was seen where, and why.

Bounds, not equalities, wherever another right style would differ. A failing part names the first such rank.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from course_lib.grading.exercise import Part, RankData
from course_lib.grading.hoard import LIMIT_BYTES, OUTSIDE_TENSORS
from course_lib.trace import Event, Launch, Mark, RankTrace, Wait
from course_lib.trace.events import POLLED

SILENT = ("new_group", "barrier")  # carry no data: counted only where asked for


def left_in_flight(events: Sequence[Event]) -> list[str]:
    """Operations that were launched and not waited for; none if the program polled instead."""
    if any(isinstance(e, Mark) and e.name == POLLED for e in events):
        return []
    waited = {e.launch_id for e in events if isinstance(e, Wait)}
    return [e.op for e in events if isinstance(e, Launch) and e.op not in SILENT and e.id not in waited]


def count_calls(
    name: str,
    got: Sequence[RankData],
    exactly: Mapping[str, int],
    *,
    why: str,
    ignore: Sequence[str] = SILENT,
) -> Part:
    """Each rank launched exactly these communication calls and no others; one rank alone is free."""
    wanted = _calls(exactly)
    if len(got) == 1:
        return Part(name, True, f"{wanted} on each rank")
    for rank, data in enumerate(got):
        seen = Counter(c.op for c in data.traced.launches() if c.op not in ignore)
        if seen != Counter(exactly):
            text = (
                f"rank {rank} must launch {wanted} and nothing else; it launched {_calls(seen)}. {_why(why)}"
            )
            return Part(name, False, text)
    return Part(name, True, f"{wanted} on each rank")


def calls_between(
    name: str, got: Sequence[RankData], op: str | Sequence[str], low: int, high: int, *, why: str
) -> Part:
    """Each rank launched between `low` and `high` calls of `op` (one, or several that count together)."""
    ops = [op] if isinstance(op, str) else list(op)
    counts = [sum(c.op in ops for c in data.traced.launches()) for data in got]
    return between(name, counts, low, high, what=f"{' or '.join(ops)} calls", why=why)


def bytes_between(
    name: str, got: Sequence[RankData], low: int, high: int, *, why: str, op: str | None = None
) -> Part:
    """Each rank handed between `low` and `high` bytes to collectives (of one op, if named)."""
    counts = [data.traced.comm_bytes(op) for data in got]
    return between(name, counts, low, high, what=f"bytes into {op or 'collectives'}", why=why)


def sent_bytes_between(name: str, got: Sequence[RankData], low: int, high: int, *, why: str) -> Part:
    """Each rank sent between `low` and `high` bytes point to point."""
    return between(name, [data.traced.sent_bytes() for data in got], low, high, what="bytes sent", why=why)


def handed_bytes_between(name: str, got: Sequence[RankData], low: int, high: int, *, why: str) -> Part:
    """Each rank handed between `low` and `high` bytes to collectives and sends together."""
    counts = [data.traced.comm_bytes() + data.traced.sent_bytes() for data in got]
    return between(name, counts, low, high, what="bytes into collectives and sends", why=why)


def live_bytes_at_most(
    name: str, got: Sequence[RankData], mark: str, bound: int, *, why: str, category: str | None = None
) -> Part:
    """At a mark, each rank holds at most `bound` live bytes (of one category, if named)."""
    counts = [data.traced.live_bytes_at(mark, category) for data in got]
    return between(name, counts, 0, bound, what=f"live bytes at {mark!r}", why=why)


def between(name: str, counts: Sequence[float], low: float, high: float, *, what: str, why: str) -> Part:
    """A number a rank, each within bounds that both count."""
    for rank, count in enumerate(counts):
        if not low <= count <= high:
            bound = _bound(low, high)
            ratio = f" ({count / high:.2g}x the bound)" if high and count > high else ""
            return Part(
                name, False, f"rank {rank} must have {bound} {what}; got {_big(count)}{ratio}. {_why(why)}"
            )
    return Part(name, True, f"{_big(max(counts, default=0))} {what} a rank ({_bound(low, high)})")


def outside_tensors(got: Sequence[RankData]) -> Part | None:
    """A failing part "memory" if a rank keeps its numbers outside tensors; else None."""
    for rank, data in enumerate(got):
        count = data.values.get(OUTSIDE_TENSORS, 0)
        if count > LIMIT_BYTES:
            text = (
                f"rank {rank} keeps {_big(count)} bytes of numbers outside tensors (in lists, arrays or "
                f"bytes); at most {LIMIT_BYTES} are allowed. They fill the memory as tensors do."
            )
            return Part("memory", False, text)
    return None


def before(
    name: str,
    got: Sequence[RankData],
    first: Callable[[RankTrace], float | None],
    then: Callable[[RankTrace], float | None],
    *,
    must: str,
    why: str,
) -> Part:
    """On each rank, position `first` exists and comes before position `then` (if that exists)."""
    for rank, data in enumerate(got):
        a, b = first(data.traced), then(data.traced)
        if a is None:
            return Part(name, False, f"{must}; on rank {rank} it never happened. {_why(why)}")
        if b is not None and a >= b:
            return Part(name, False, f"{must}; on rank {rank} it was the other way round. {_why(why)}")
    return Part(name, True, must)


def position_of_mark(trace: RankTrace, mark: str) -> int | None:
    """Place of the last mark of that name in program order."""
    found = [m for m in trace.marks if m.name == mark]
    return trace.position(found[-1]) if found else None


def position_of_launch(trace: RankTrace, op: str, which: int = 0) -> int | None:
    """Place of a launch of `op` in program order: 0 the first, -1 the last."""
    found: list[Launch] = trace.launches(op)
    return trace.position(found[which]) if -len(found) <= which < len(found) else None


def _calls(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n} {op}" for op, n in counts.items() if n) or "nothing"


def _bound(low: float, high: float) -> str:
    if low == high:
        return f"exactly {_big(low)}"
    return f"at most {_big(high)}" if low <= 0 else f"between {_big(low)} and {_big(high)}"


def _big(count: float) -> str:
    return f"{count:,}" if isinstance(count, int) else f"{count:,.4g}"


def _why(why: str) -> str:
    return why[:1].upper() + why[1:].rstrip(".") + "."
