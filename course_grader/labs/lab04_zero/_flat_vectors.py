"""Judge's half of `flat_vectors`: tensors of awkward shapes, and their flat vector."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from course_grader.inside.programs.lab04 import PADDING as PADDING
from course_grader.types import Array, Case, Scenario, rng

Shapes = list[list[int]]


def tensors_case(world_size: int, shapes: Shapes, dtype: str = "float64") -> Case:
    """Ranks that hold the same tensors."""
    label = f"{world_size} rank{'s' * (world_size > 1)}, shapes {shapes}, {dtype}"
    return Case(world_size=world_size, params={"shapes": shapes, "dtype": dtype}, label=label)


def vector_case(shapes: Shapes, padding: int = 0, begin: int = 0) -> Case:
    """One process with a flat vector of these shapes that ends with zeros and may begin inside another."""
    inside = f", flat = longer_vector[{begin}:]" if begin else ""
    return Case(
        world_size=1,
        params={"shapes": shapes, "padding": padding, "begin": begin},
        label=f"shapes {shapes}, {padding} of padding{inside}",
        trace=False,
    )


def sizes(case: Case) -> list[int]:
    """Elements of each tensor."""
    return [prod(shape) for shape in case.params["shapes"]]


def tensors(case: Case, rank: int = 0) -> dict[str, Array]:
    """The same tensors on every rank."""
    del rank
    draw = rng(case, 0)
    return {
        f"tensor {i}": draw.normal(9, 9, tuple(shape)).astype(case.params["dtype"])
        for i, shape in enumerate(case.params["shapes"])
    }


def vector(case: Case, rank: int = 0) -> dict[str, Array]:
    """A flat vector with its padding."""
    del rank
    return {
        "flat": np.concatenate(
            [rng(case, 0).normal(1, 1, sum(sizes(case))), np.zeros(case.params["padding"])]
        )
    }


def flat_vectors(direction: str) -> Scenario:
    """impl(tensors, rank, world_size) with "flatten"; impl(flat, shapes) with "unflatten"."""
    options: dict[str, Any] = {"direction": direction}
    return Scenario(
        rank_side="course_grader.inside.programs.lab04:flat_vectors",
        inputs=tensors if direction == "flatten" else vector,
        options=options,
    )
