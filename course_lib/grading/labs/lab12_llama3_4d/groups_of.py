"""`groups_of`: who talks to whom along an axis, or along several together."""

from itertools import product
from typing import Any

import numpy as np

from course_lib.grading.core.types import Exercise
from course_lib.grading.parts.numbers import EveryPoint, Point
from course_lib.grading.worlds.samples import samples

AXES = ("pp", "dp", "cp", "tp")


def _draw(rng: np.random.Generator, count: int) -> list[Point]:
    points: list[Point] = []
    for i in range(count):
        chosen = [axis for axis in AXES if rng.random() < 0.8] or ["dp", "tp"]
        sizes = [[axis, int(rng.integers(2, 5))] for axis in chosen]
        several = list(rng.permutation(chosen)[: 1 + (i % 2)])
        points.append({"axes": sorted(str(a) for a in several), "sizes": sizes})
    return points


def _groups(point: Point, *, axes: list[str] | None = None, first_fastest: bool = False) -> list[list[int]]:
    sizes, axes = point["sizes"], point["axes"] if axes is None else axes
    sizes = sizes[::-1] if first_fastest else sizes
    names = [name for name, _ in sizes]
    lines: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(product(*(range(size) for _, size in sizes))):
        others = tuple(at for name, at in zip(names, place, strict=True) if name not in axes)
        lines.setdefault(others, []).append(rank)
    return sorted(lines.values())


def _plain(answer: Any) -> Any:
    try:
        return sorted(sorted(int(rank) for rank in group) for group in answer)
    except (TypeError, ValueError):
        return answer


def _problem(point: Point, answer: Any) -> str:
    want = _groups(point)
    if not isinstance(answer, list | tuple):
        return f"the groups must be a list of lists of ranks; got {answer!s:.60}. Wrap it: list(...)."
    if _plain(answer) == want:
        return ""
    along = " and ".join(point["axes"])
    return (
        f"the groups along {along} must be the {len(want)} lines of {len(want[0])} ranks that differ in "
        f"nothing "
        f"else, the first of them {want[0]}; got {answer!s:.120}."
    )


def _blocks(point: Point) -> list[list[int]]:
    """Neighbours, whatever the axis."""
    size = len(_groups(point)[0])
    world_size = int(np.prod([size for _, size in point["sizes"]]))
    return [list(range(start, start + size)) for start in range(0, world_size, size)]


EXERCISE = Exercise(
    order=2,
    title="Who talks to whom",
    minutes=15,
    difficulty=2,
    importance=5,
    lines=8,
    points={"groups": 1.0},
    task="Write a function that returns the groups of ranks along one or several axes of a mesh: lists of "
    "global ranks that differ in these axes only.",
    graded={"groups": "Every rank is in its one group."},
    details="Meshes of one to four axes, some of size 1; points you have not seen. Groups "
    "and ranks in any order.",
    signature="(axes, sizes)",
    forbids=("mesh",),
    scenario=samples(stream=122, draw=_draw),
    hints=(
        "Two ranks are in one group if they agree in all axes but `axes`.",
        "Go through all ranks with your `rank_to_coords`, and sort them by what must agree.",
        "The key of a group is the tuple of its places along the axes that are not named: collect the ranks "
        "in a dict under that key.",
    ),
)

OPEN = [
    {"axes": ["tp"], "sizes": [["dp", 2], ["tp", 4]]},
    {"axes": ["dp"], "sizes": [["dp", 2], ["tp", 4]]},
    {"axes": ["cp", "dp"], "sizes": [["pp", 2], ["dp", 2], ["cp", 2], ["tp", 2]]},
    {"axes": ["cp"], "sizes": [["dp", 2], ["cp", 1], ["tp", 2]]},
    4,
]
HIDDEN = [12]
PARTS = [
    EveryPoint(
        part="groups",
        problem=_problem,
        rules={
            "only the first of the axes is taken": lambda p: _groups(p, axes=p["axes"][:1]),
            "your `rank_to_coords` lets the first axis vary fastest": lambda p: _groups(
                p, first_fastest=True
            ),
            "neighbours make a group, whatever the axis": _blocks,
            "ranks that agree in `axes` make a group": lambda p: _groups(
                p, axes=[a for a, _ in p["sizes"] if a not in p["axes"]]
            ),
        },
        same=_plain,
    )
]
