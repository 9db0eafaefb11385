"""`unflatten`: the tensors of a padded flat vector, as views of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, rng
from course_lib.grading.zero_oracle import CLOSED

EXERCISE = Exercise(
    id="unflatten",
    lab="04_zero",
    order=3,
    symbol="unflatten",
    title="Back to tensors, without a copy",
    minutes=10,
    difficulty=2,
    importance=4,
    lines=4,
    points={"values": 1.0, "views": 0.5},
    graded="Values: a list with one tensor for each shape, in order, equal to what was flattened, scalars "
    "and empty tensors too; padding at the end is left out; the flat vector, which may be a slice of a "
    "longer one, stays as it is. Views: every tensor shares its storage, so that nothing is copied.",
    closed=CLOSED,
    signature="(flat, shapes)",
    hints=(
        "The shapes are all the metadata you need: they say how many elements each tensor has.",
        "Cut off the padding first; torch.split wants sizes that add up to all.",
        "split gives 1-D views; .view(shape) keeps them views. A scalar's shape is (), with one element.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """With and without padding; a scalar and an empty tensor; a flat vector that is a slice itself."""
    rows: list[tuple[list[list[int]], int, int]] = [
        ([[3, 4], [5]], 0, 0),
        ([[2, 3], [], [7], [1, 2, 2]], 3, 0),
        ([[4], [0, 3], [2, 2], [4]], 1, 2),
    ]
    if hidden:
        rows += [([[], [1], [1, 1], [3, 0]], 6, 0), ([[31, 7], [5, 3, 2], [], [11]], 5, 3)]
    return [
        Case(
            world_size=1,
            seed=seed,
            params={"shapes": shapes, "padding": padding, "begin": begin},
            label=f"shapes {shapes}, {padding} of padding"
            + (f", flat = longer_vector[{begin}:]" if begin else ""),
            trace=False,
        )
        for shapes, padding, begin in rows
    ]


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """A flat vector and its padding (zeros)."""
    del rank
    size = sum(int(np.prod(shape)) for shape in case.params["shapes"])
    return {"flat": np.concatenate([rng(case, 0).normal(1, 1, size), np.zeros(case.params["padding"])])}


def oracle(case: Case) -> dict[str, Any]:
    """Cut with numpy."""
    flat, start = inputs(case, 0)["flat"], 0
    out: dict[str, Any] = {"number of tensors": len(case.params["shapes"]), "flat vector": flat}
    for i, shape in enumerate(case.params["shapes"]):
        size = int(np.prod(shape))
        out[f"tensor {i}"] = flat[start : start + size].reshape(shape)
        start += size
    return out


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Which tensors are views."""
    del case, want
    copies = [i for i, shared in enumerate(got[0].values["shared"]) if not shared]
    text = f"every tensor must be a view of the flat vector; {copies} are copies. Use split and view."
    return [Part("views", not copies, text if copies else f"{len(got[0].values['shared'])} views")]
