"""`rank_to_coords`: a rank's place along each axis of a mesh."""

from typing import Any

import numpy as np

from course_grader.expected.samples import samples
from course_grader.parts.numbers import EveryPoint, Point
from course_grader.types import Exercise, Why

AXES = ("pp", "dp", "cp", "tp")


def _draw(rng: np.random.Generator, count: int) -> list[Point]:
    points: list[Point] = []
    for _ in range(count):
        sizes: list[list[Any]] = [
            [str(axis), int(rng.integers(2, 9))] for axis in rng.permutation(AXES)[: rng.integers(2, 5)]
        ]
        world_size = int(np.prod([size for _, size in sizes]))
        points.append({"rank": int(rng.integers(world_size // 2, world_size)), "sizes": sizes})
    return points


def _coords(point: Point, *, first_fastest: bool = False) -> dict[str, int]:
    rank, found = point["rank"], {}
    axes = point["sizes"]
    for axis, size in axes if first_fastest else reversed(axes):
        rank, found[axis] = divmod(rank, size)
    return found


def _problem(point: Point, answer: Any) -> Why | None:
    want = {axis: _coords(point)[axis] for axis, _ in point["sizes"]}
    if answer == want:
        return None
    return Why(f"the place of a rank must be one number per axis, {want}", f"got {answer!r}")


EXERCISE = Exercise(
    order=1,
    title="Where is rank 12,345?",
    minutes=10,
    difficulty=1,
    importance=5,
    lines=5,
    points={"coords": 1.0},
    task="Write a function that returns a rank's place along each axis of a mesh, as a dict. The last axis "
    "varies fastest.",
    graded={"coords": "The place is right for every rank and mesh."},
    details="Meshes of one to four axes, some of size 1, up to 16,384 ranks; points you have not seen.",
    signature="(rank, sizes)",
    forbids=("mesh",),
    scenario=samples(stream=121, draw=_draw),
    hints=(
        "Write the ranks of a 2 x 3 mesh on paper, row by row. What do neighbours in a row share?",
        "Going through the axes from the fastest: what remains of the rank when its place there is known?",
        "Dividing by an axis's size has a quotient and a remainder: one is the place along this axis, the "
        "other belongs to the slower axes. Which is which, and in which order must the places be "
        "returned?",
    ),
)

OPEN = [
    {"rank": 5, "sizes": [["pp", 2], ["tp", 4]]},
    {"rank": 12_345, "sizes": [["pp", 16], ["dp", 8], ["cp", 16], ["tp", 8]]},
    {"rank": 3, "sizes": [["dp", 4]]},
    {"rank": 5, "sizes": [["pp", 1], ["dp", 4], ["tp", 2]]},
    4,
]
HIDDEN = [12]
PARTS = [
    EveryPoint(
        part="coords",
        problem=_problem,
        rules={"the first axis varies fastest": lambda p: _coords(p, first_fastest=True)},
        same=lambda answer: dict(answer) if isinstance(answer, dict) else answer,
    )
]
