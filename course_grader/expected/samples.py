"""Judge's half of `inside/scenarios/samples`: points that are listed, and points that the seed draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from course_grader.parts.points import no_inputs, point_case
from course_grader.types import Case, Scenario

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
    """impl(**point) at every point. OPEN and HIDDEN hold points; an int n among them stands for n drawn ones.

    Args:
        draw: (generator, how many) -> rows.
        expand: a row -> its points, where a row stands for several.
        stream: keeps the draws of exercises apart.
        options: as in `inside/scenarios/samples`.
    """

    def cases(chosen: Sequence[Any], seed: int) -> list[Case]:
        listed = [row for row in chosen if not isinstance(row, int)]
        count = sum(row for row in chosen if isinstance(row, int))
        rows = [*listed, *draw(np.random.default_rng([seed, stream]), count)]
        return point_case(seed, [point for row in rows for point in expand(row)])

    return Scenario(
        rank_side="course_grader.inside.scenarios.samples:program",
        inputs=no_inputs,
        options=options,
        cases=cases,
    )


def separating(
    draw_one: Callable[[np.random.Generator, int], Any],
    rules: Sequence[Callable[[Any], Any]],
    loses: Callable[[Any, Any], bool],
    rng: np.random.Generator,
    count: int,
    pinned: Mapping[int, Callable[[Any], bool]] | None = None,
) -> list[Any]:
    """Draw `count` points that tell known mistakes from right answers and from one another.

    Every mistake loses at one of the first half of the points, and no two give the same answers at all
    points. Until that is so, points are drawn again, one at a time.

    Args:
        draw_one: (generator, place) -> a point.
        rules: what an answer with each mistake gives at a point.
        loses: whether an answer loses at a point.
        pinned: what the point at a place must show: mistakes that few points do.
    """

    def drawn(place: int) -> Any:
        while True:
            point = draw_one(rng, place)
            if pinned is None or place not in pinned or pinned[place](point):
                return point

    def answered(point: Any) -> list[tuple[str, bool]]:
        answers = [rule(point) for rule in rules]
        return [(repr(answer), loses(point, answer)) for answer in answers]

    def told_apart(rows: Sequence[list[tuple[str, bool]]]) -> int:
        """How many mistakes lose in the first half, and how many differ."""
        columns = [tuple(row[i] for row in rows) for i in range(len(rules))]
        beaten = sum(any(lost for _, lost in column[: count // 2]) for column in columns)
        return beaten + len({tuple(answer for answer, _ in column) for column in columns})

    points = [drawn(place) for place in range(count)]
    rows = [answered(point) for point in points]
    turn = 0
    while told_apart(rows) < 2 * len(rules):
        place = turn % len(rows)
        point = drawn(place)
        others = [*rows[:place], answered(point), *rows[place + 1 :]]
        if told_apart(others) >= told_apart(rows):
            points[place], rows = point, others
        turn += 1
    return points
