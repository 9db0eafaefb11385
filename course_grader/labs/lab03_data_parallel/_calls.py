"""Judge's half of `calls`: which calls each rank makes; a case is plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from course_grader.parts.points import no_inputs
from course_grader.types import Case, Scenario

Calls = dict[str, dict[str, Any]]


def case(world_size: int, words: str, **arguments: Any) -> Case:
    """A world whose ranks call the answer with these keyword arguments, and their `rank` and `world_size`."""
    label = f"{world_size} rank{'s' * (world_size > 1)}, {words}"
    return Case(world_size=world_size, params={"arguments": arguments}, label=label, trace=False)


def calls(make: Callable[[Case], Calls], before: Callable[[Case], dict[str, Any]]) -> Scenario:
    """impl(**arguments) several times on each rank, without communication.

    Args:
        make: case -> {name: arguments that differ}; the case has its seed.
        before: case -> the arguments that differ in a first call, whose result is dropped.
    """

    def cases(chosen: Sequence[Any], seed: int) -> list[Case]:
        seeded = [replace(one, seed=seed) for one in chosen]
        return [
            replace(one, params={**one.params, "calls": make(one), "before": before(one)}) for one in seeded
        ]

    return Scenario(rank_side="course_grader.inside.programs.lab03:calls", inputs=no_inputs, cases=cases)
