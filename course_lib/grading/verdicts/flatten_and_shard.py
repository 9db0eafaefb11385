"""`flatten_and_shard`: tensors one after the other, padded, and this rank's equal share of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want, rng
from course_lib.grading.measure import between
from course_lib.grading.zero_oracle import CLOSED

EXERCISE = Exercise(
    id="flatten_and_shard",
    lab="04_zero",
    order=2,
    symbol="flatten_and_shard",
    title="Flatten, pad, shard",
    minutes=15,
    difficulty=2,
    importance=5,
    lines=7,
    points={"values": 1.5, "memory": 0.5},
    graded="Values, at 1-4 ranks (hidden: 5, 6, 8), for sizes that n does not divide, scalars, and fewer "
    "elements than ranks: a 1-D shard of exactly ceil(P/n) elements of the tensors' dtype, zeros where "
    "there is padding; the tensors and their list stay as they were. Memory: when the function has "
    "returned, only the shard's ceil(P/n) elements live beyond its inputs (and 64 bytes); the flat vector "
    "is gone.",
    closed=CLOSED,
    signature="(tensors, rank, world_size)",
    hints=(
        "All shards have the same size, so the flat vector must be made longer until n divides it.",
        "ceil(P/n) in whole numbers is -(-P // n). torch.cat of flattened tensors, then new_zeros for what "
        "is missing.",
        "A slice is a view, and a view keeps its whole storage alive: clone it.",
    ),
)

_SHAPES: dict[str, list[list[int]]] = {
    "divides": [[4, 3], [12]],
    "does not divide": [[3, 5], [], [7], [2, 1, 2]],
    "fewer elements than ranks": [[], [1]],
    "a shard of padding only": [[3], [2]],
    "large": [[300, 301], [17]],
}


def cases(seed: int, hidden: bool) -> list[Case]:
    """Sizes that divide and that do not; padding that reaches over whole shards."""
    rows = [(1, "does not divide", "float64"), (2, "does not divide", "float16"), (3, "divides", "float64")]
    rows += [(4, "does not divide", "float64"), (4, "fewer elements than ranks", "float64")]
    if hidden:
        rows += [(5, "fewer elements than ranks", "int32"), (6, "does not divide", "float64")]
        rows += [(4, "a shard of padding only", "float64"), (8, "large", "float64")]
    return [
        Case(
            world_size=n,
            seed=seed,
            params={"shapes": _SHAPES[kind], "dtype": dtype},
            label=f"{n} rank{'s' * (n > 1)}, shapes {_SHAPES[kind]}, {dtype}",
        )
        for n, kind, dtype in rows
    ]


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """The same tensors on every rank."""
    del rank
    draw = rng(case, 0)
    dtype = case.params["dtype"]
    return {f"tensor {i}": draw.normal(9, 9, shape).astype(dtype) for i, shape in enumerate(_shapes(case))}


def _shapes(case: Case) -> list[tuple[int, ...]]:
    return [tuple(shape) for shape in case.params["shapes"]]


def oracle(case: Case) -> dict[str, Any]:
    """Cut the padded flat vector with numpy."""
    n = case.world_size
    flat = np.concatenate([array.reshape(-1) for array in inputs(case, 0).values()])
    size = -(-flat.size // n)
    padded = np.concatenate([flat, np.zeros(n * size - flat.size, flat.dtype)])
    strided = [padded[r::n] for r in range(n)]
    near = {"shards are taken in turn, every n-th element: a shard is one range": strided} if n > 1 else {}
    shards = Want(list(padded.reshape(n, size)), per_rank=True, near=near)
    return {"shard": shards, "number of tensors in the list": len(_shapes(case))}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """What is left beside the inputs."""
    del want
    sizes = sum(int(np.prod(shape)) for shape in _shapes(case))
    bound = 8 * -(-sizes // case.world_size) + 64
    counts = [d.traced.live_bytes_at("end") - d.traced.live_bytes_at("begin") for d in got]
    why = "a view keeps its whole storage alive: copy the shard out of the flat vector"
    return [between("memory", counts, 0, bound, what="bytes more after the call", why=why)]
