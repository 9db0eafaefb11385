"""The names an exercise file imports: its declaration, its cases, and what its parts read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from course_grader.exercise import Array as Array
from course_grader.exercise import Case as Case
from course_grader.exercise import Exercise as Exercise
from course_grader.exercise import ExpectedValue as ExpectedValue
from course_grader.exercise import Part as Part
from course_grader.exercise import RankData as RankData
from course_grader.exercise import Scenario as Scenario
from course_grader.exercise import rng as rng
from course_grader.why import Why as Why

if TYPE_CHECKING:
    from course_lib.trace import RankTrace

R = TypeVar("R")


def once_per_case(compute: Callable[[Case], R]) -> Callable[[Case], R]:
    """Keep what a function computed of the last few cases: every mistake needs the same oracle again."""
    kept: dict[tuple[int, int, str], R] = {}

    @functools.wraps(compute)
    def once(case: Case) -> R:
        key = (case.world_size, case.seed, repr(case.params))
        if key not in kept:
            while len(kept) >= 4:
                kept.pop(next(iter(kept)))
            kept[key] = compute(case)
        return kept[key]

    return once


Expected = dict[str, list[Any]]  # name -> what each rank must hold under it, one entry per rank
Bytes = Callable[[Case], int]


@dataclass(frozen=True)
class Group:
    """Ranks that talk: n of them, each with a tensor of numel elements (0 where a case states no shape)."""

    ranks: list[int]
    n: int
    numel: int


def groups(case: Case) -> list[Group]:
    """The groups of a case (its params "groups"; none: the world), and each rank outside them by itself."""
    lists = case.params.get("groups") or [list(range(case.world_size))]
    inside = {rank for ranks in lists for rank in ranks}
    alone = [[rank] for rank in range(case.world_size) if rank not in inside]
    numel = prod(case.params["shape"]) if "shape" in case.params else 0
    return [Group(list(ranks), len(ranks), numel) for ranks in [*lists, *alone]]


@dataclass(frozen=True)
class Observation:
    """One case that ran: what parts read.

    Attributes:
        case: its sizes and params.
        got: what each rank handed back.
        want: what it had to hand back, by name.
    """

    case: Case
    got: Sequence[RankData]
    want: Mapping[str, Any]

    @property
    def n(self) -> int:
        """The world size."""
        return self.case.world_size

    @property
    def traces(self) -> list[RankTrace]:
        """Each rank's trace; a part that reads them is skipped where a case records none."""
        return [data.traced for data in self.got]


class Check(Protocol):
    """One generic part with the numbers of an exercise."""

    @property
    def reads_trace(self) -> bool:
        """Whether it needs a trace."""

    def check(self, seen: Observation) -> Part | None:
        """Judge one case; None: the part does not apply to it."""
