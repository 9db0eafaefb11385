"""Parts that read the order of events: what was launched, awaited or computed before what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from course_lib.grading.core.types import Case, Part, Seen
from course_lib.grading.parts.common import WHOLE, Window, first_problem
from course_lib.trace import RankTrace
from course_lib.trace.events import Compute, Event, Launch, Mark

Place = Callable[[RankTrace], int | None]


def at_mark(name: str, which: int = 0) -> Place:
    """The place of a mark in a rank's events: 0 the first of that name, -1 the last."""
    return lambda trace: _nth(
        [i for i, e in enumerate(trace.events) if isinstance(e, Mark) and e.name == name], which
    )


def at_launch(op: str, which: int = 0) -> Place:
    """The place of a call's launch: the first of that operation, -1 the last."""
    return lambda trace: _nth(
        [i for i, e in enumerate(trace.events) if isinstance(e, Launch) and e.op == op], which
    )


def at_matmul(phase: str = "", which: int = 0) -> Place:
    """The place of an operation that costs FLOPs, of one phase ("forward", "backward") if named."""

    def is_it(event: Event) -> bool:
        return isinstance(event, Compute) and event.flops > 0 and phase in ("", event.phase)

    return lambda trace: _nth([i for i, e in enumerate(trace.events) if is_it(e)], which)


def _nth(places: Sequence[int], which: int) -> int | None:
    return places[which] if -len(places) <= which < len(places) else None


@dataclass(frozen=True, kw_only=True)
class Before:
    """On each rank `first` happens, and before `then` (if that happens).

    Attributes:
        first, then: where in a rank's events, as `at_launch("all_gather")`.
        must: the order in words.
    """

    first: Place
    then: Place
    must: str
    why: str = ""
    window: Window = WHOLE
    applies: Callable[[Case], bool] = lambda case: case.world_size > 1
    part: str = "order"
    reads_trace: bool = True

    def check(self, seen: Seen) -> Part | None:
        """The first rank with another order speaks."""
        if not self.applies(seen.case):
            return None

        def problem(rank: int, trace: RankTrace) -> str:
            part = trace.between(self.window.start, self.window.end)
            first, then = self.first(part), self.then(part)
            if first is None:
                return f"{self.must}; on rank {rank} that never happened. {self.why}".rstrip()
            if then is not None and first >= then:
                return f"{self.must}; on rank {rank} it was the other way round. {self.why}".rstrip()
            return ""

        return first_problem(self.part, seen.traces, problem, self.must)


@dataclass(frozen=True, kw_only=True)
class NotPolled:
    """`is_completed()` is not asked in a window: it keeps what overlaps waiting, and no replay can repeat
    it.
    """

    window: Window = WHOLE
    why: str = "Call wait() where the result is needed."
    part: str = "order"
    reads_trace: bool = True

    def check(self, seen: Seen) -> Part | None:
        """Only a failing part."""
        for rank, trace in enumerate(seen.traces):
            if trace.between(self.window.start, self.window.end).polled:
                text = (
                    f"calls must be awaited with wait(), not polled with is_completed(); rank {rank} polled."
                )
                return Part(self.part, False, f"{text} {self.why}")
        return None


@dataclass(frozen=True, kw_only=True)
class Holds:
    """A rule of one exercise that no other part states: `problem` finds nothing.

    For what is the lesson of one exercise alone. Bytes, live memory, calls in flight and clocks have parts of
    their own.

    Attributes:
        problem: what must hold and what was seen, "" if it does; `each_rank(...)` asks rank by rank.
        passed: what was verified.
    """

    problem: Callable[[Seen], str]
    passed: str | Callable[[Case], str]
    applies: Callable[[Case], bool] = lambda case: True
    part: str = "order"
    gate: bool = False
    reads_trace: bool = True

    def check(self, seen: Seen) -> Part | None:
        """Ask once a case."""
        if not self.applies(seen.case):
            return None
        text = self.problem(seen)
        if text:
            return Part(self.part, False, text, gate=self.gate)
        passed = self.passed if isinstance(self.passed, str) else self.passed(seen.case)
        return None if self.gate else Part(self.part, True, passed)


def each_rank(problem: Callable[[Seen, int], str]) -> Callable[[Seen], str]:
    """A rule for one rank as a rule for all: the first rank with a problem speaks."""
    return lambda seen: next((text for rank in range(seen.n) if (text := problem(seen, rank))), "")
