"""Judge's half of `scenarios/collective`: who is in which group, who holds what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from course_grader.expected.ring_worlds import cast as cast
from course_grader.expected.ring_worlds import ceil_div as ceil_div
from course_grader.expected.ring_worlds import chunk_of as chunk_of
from course_grader.expected.ring_worlds import collective_case, with_again
from course_grader.expected.ring_worlds import members as members
from course_grader.expected.ring_worlds import rank_input as rank_input
from course_grader.expected.ring_worlds import total as total
from course_grader.types import Array, Case, Expected, Scenario, World


def case(world_size: int, shape: list[int], **more: Any) -> Case:
    """A world whose ranks hold tensors of `shape`.

    Args:
        more: groups (that work side by side; none: the world), dtype, root, again=True (the answer is called
            several times; nothing is traced then).
    """
    return collective_case(world_size, 0, shape, **more)


def servers(m: int, k: int, shape: list[int], **more: Any) -> Case:
    """m servers of k neighbouring ranks each, params["server_size"]."""
    plain = case(m * k, shape, server_size=k, **more)
    words = f"{m} server{'s' * (m > 1)} of {k} rank{'s' * (k > 1)}, {plain.label.partition(', ')[2]}"
    return replace(plain, label=words)


def rings(case: Case) -> list[list[int]]:
    """For every rank the global ranks of its group; itself if it is in none."""
    return [members(case, rank) or [rank] for rank in range(case.world_size)]


def in_place(results: list[Array], memory: list[Array] | None = None) -> World:
    """Each rank's tensor, and the memory that the tensor had when the answer got it."""
    return {"tensor": results, "memory": results if memory is None else memory}


OTHER_ROOTS: dict[str, dict[str, Any]] = {
    "rank 0 is the root: the argument `root` is asked": {"root": 0},
    "`root` is taken for a place in the group: it is a global rank": {"root": "place"},
}


def taken_for_root(case: Case, root: int | str) -> int:
    """The global rank that an answer takes for the root: a rank, or "place"; the right one if it is none."""
    wanted: int = case.params["root"]
    ring = members(case, wanted)
    if root == "place":
        return ring[wanted % len(ring)]
    return int(root) if root in ring else wanted


def sums_on_the_way(case: Case, root: int, left: str) -> list[Array]:
    """What ranks hold if a binomial tree leaves sums in the tensors of all but the root.

    left: "partial" sums, each of a place's own part of the tree, or "all" of the group.
    """
    own, ring = own_tensors(case), members(case, root)
    places = ring[ring.index(root) :] + ring[: ring.index(root)]
    tensors = list(own)
    for place, rank in enumerate(places[1:], start=1):
        below = places[place : place + (place & -place)]  # as many as the lowest bit says
        tensors[rank] = np.sum([own[other] for other in (ring if left == "all" else below)], axis=0)
    return tensors


OTHER_MEMORY = "the tensor was given other memory (.data = ..., set_): write into what it has, with copy_"


def own_tensors(case: Case) -> list[Array]:
    """What each rank starts with."""
    return [rank_input(case, rank) for rank in range(case.world_size)]


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    return {"tensor": rank_input(case, rank)}


def _called_again(case: Case, wants: dict[str, Expected]) -> dict[str, Expected]:
    if "again" not in case.params or len(wants) > 1:  # in place: one tensor, read once
        return wants
    ((name, want),) = wants.items()
    return with_again(case, name, want)


def collective(inputs: Callable[[Case, int], dict[str, Array]] = _inputs, **options: Any) -> Scenario:
    """impl(tensor, *arguments) on every rank; options as in `scenarios/collective`.

    inputs: (case, rank) -> {"tensor": ...}; a tensor of the case's shape that differs from rank to rank.
    """
    return Scenario(
        rank_side="course_grader.inside.scenarios.collective",
        inputs=inputs,
        options=options,
        complete=_called_again,
    )
