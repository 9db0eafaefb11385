"""Judge's half of `scenarios/collective`: who is in which group, who holds what."""

from __future__ import annotations

from typing import Any

from course_lib.grading.core.types import Array, Case, Scenario, Want
from course_lib.grading.ring_worlds import ceil_div as ceil_div
from course_lib.grading.ring_worlds import chunk_of as chunk_of
from course_lib.grading.ring_worlds import held as held
from course_lib.grading.ring_worlds import members as members
from course_lib.grading.ring_worlds import total as total
from course_lib.grading.ring_worlds import with_again, world


def case(world_size: int, shape: list[int], **more: Any) -> Case:
    """A world whose ranks hold tensors of `shape`.

    Args:
        more: groups (that work side by side; none: the world), dtype, root, again=True (the answer is called
            several times; nothing is traced then).
    """
    return world(world_size, 0, shape, **more)


def rings(case: Case) -> list[list[int]]:
    """For every rank the global ranks of its group; itself if it is in none."""
    return [members(case, rank) or [rank] for rank in range(case.world_size)]


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    return {"tensor": held(case, rank)}


def _called_again(case: Case, wants: dict[str, Want]) -> dict[str, Want]:
    if "again" not in case.params or len(wants) > 1:  # in place: one tensor, read once
        return wants
    ((name, want),) = wants.items()
    return with_again(case, name, want)


def collective(**options: Any) -> Scenario:
    """impl(tensor, *arguments, group) on every rank; options as in `scenarios/collective`."""
    complete = (lambda case, wants: wants) if options.get("in_place") else _called_again
    return Scenario(
        rank_side="course_lib.grading.scenarios.collective",
        inputs=_inputs,
        options=options,
        complete=complete,
    )
