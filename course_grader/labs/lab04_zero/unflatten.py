"""`unflatten`: the tensors of a padded flat vector, as views of it."""

from course_grader.labs.lab04_zero._flat_vectors import flat_vectors, sizes, vector
from course_grader.labs.lab04_zero._flat_vectors import vector_case as case
from course_grader.parts.counts import Reported
from course_grader.types import Case, Exercise, Expected

EXERCISE = Exercise(
    order=3,
    title="Back to tensors, without a copy",
    minutes=10,
    difficulty=2,
    importance=4,
    lines=4,
    points={"values": 0.5, "views": 1.0},
    task="Write a function that returns the tensors of a flat vector again, one for each shape.",
    graded={
        "values": "A list of the tensors, in order; padding at the end is left out.",
        "views": "Every tensor shares the vector's storage: nothing is copied.",
    },
    details="Scalars and empty tensors, with and without padding, flat vectors that are a slice of a longer "
    "one (hidden: more shapes). The vector stays as it is.",
    signature="(flat, shapes)",
    forbids=("zero",),
    scenario=flat_vectors("unflatten"),
    hints=(
        "The shapes are all the metadata you need: they say how many elements each tensor has.",
        "Cut off the padding first; torch.split wants sizes that add up to all.",
        "The parts of a split are views, but 1-D. Which call gives a view another shape, and never copies? "
        "How many elements has a tensor whose shape is ()?",
    ),
)

OPEN = [
    case([[3, 4], [5]]),
    case([[2, 3], [], [7], [1, 2, 2]], padding=3),
    case([[4], [0, 3], [2, 2], [4]], padding=1, begin=2),
]
HIDDEN = [
    case([[], [1], [1, 1], [3, 0]], padding=6),
    case([[31, 7], [5, 3, 2], [], [11]], padding=5, begin=3),
]


def expected(case: Case) -> Expected:
    """Cut with numpy."""
    flat, start = vector(case)["flat"], 0
    world: Expected = {"number of tensors": [len(sizes(case))], "flat vector": [flat]}
    for i, (shape, size) in enumerate(zip(case.params["shapes"], sizes(case), strict=True)):
        world[f"tensor {i}"] = [flat[start : start + size].reshape(shape)]
        start += size
    return world


def _copies(shared: object) -> str:
    assert isinstance(shared, list)
    return f"{[i for i, each in enumerate(shared) if not each]} are copies"


PARTS = [
    Reported(
        part="views",
        name="shared",
        value=lambda case: [True] * len(sizes(case)),
        must=lambda case: "every tensor must be a view of the flat vector",
        words=_copies,
        why="Use split and view.",
        passed="nothing is copied",
        free_alone=False,
    )
]
