"""Judge's half of `scenarios/samples`: points that are listed, and points that the seed draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from course_lib.grading.core.types import Case, Scenario
from course_lib.grading.points import no_inputs, point_case

Draw = Callable[[np.random.Generator, int], Sequence[Any]]


def _none(rng: np.random.Generator, count: int) -> Sequence[Any]:
    del rng, count
    return []


def samples(
    *,
    draw: Draw = _none,
    expand: Callable[[Any], list[dict[str, Any]]] = lambda row: [row],
    stream: int = 0,
    **options: Any,
) -> Scenario:
    """impl(**point) at every point. OPEN and HIDDEN hold points; an int among them asks for so many drawn
    ones.

    Args:
        draw: (generator, how many) -> rows.
        expand: a row -> its points, where a row stands for several.
        stream: keeps the draws of exercises apart.
        options: as in `scenarios/samples`.
    """

    def cases(chosen: Sequence[Any], seed: int) -> list[Case]:
        listed = [row for row in chosen if not isinstance(row, int)]
        count = sum(row for row in chosen if isinstance(row, int))
        rows = [*listed, *draw(np.random.default_rng([seed, stream]), count)]
        return point_case(seed, [point for row in rows for point in expand(row)])

    return Scenario(
        rank_side="course_lib.grading.scenarios.samples",
        inputs=no_inputs,
        options=options,
        cases=cases,
    )


def separating(
    draw_one: Callable[[np.random.Generator, int], Any],
    mistakes: Sequence[Callable[[Any], bool]],
    rng: np.random.Generator,
    count: int,
    pinned: Mapping[int, Callable[[Any], bool]] | None = None,
) -> list[Any]:
    """Draw `count` points until every mistake is wrong at one of the first half of them.

    Args:
        draw_one: (generator, place) -> a point.
        mistakes: whether an answer with the mistake loses at a point.
        pinned: mistakes that few points show: the place of the point that must.
    """
    while True:
        points = [draw_one(rng, i) for i in range(count)]
        for i, loses in (pinned or {}).items():
            while not loses(points[i]):
                points[i] = draw_one(rng, i)
        if all(any(loses(p) for p in points[: count // 2]) for loses in mistakes):
            return points
