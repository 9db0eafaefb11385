"""`rank_hello`: every rank says who it is, and all agree on a sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want, rng
from course_lib.grading.measure import count_calls

EXERCISE = Exercise(
    id="rank_hello",
    lab="00_start_here",
    order=1,
    symbol="rank_hello",
    title="Every rank says hello",
    minutes=10,
    difficulty=1,
    importance=3,
    lines=4,
    points={"values": 1.0, "bytes": 1.0},
    graded="Every rank returns (rank, world_size, sum of the secrets of all ranks) as three ints, at 1-4 "
    "ranks. Bytes: exactly one collective, an all_reduce, is launched on each rank.",
    signature="(secret)",
    hints=(
        "Two functions of torch.distributed say who it is and how many there are: nobody communicates.",
        "The sum needs every secret. One collective leaves the sum of a tensor on every rank, in place.",
        "Put the secret into an integer tensor of one element, sum it over the ranks, take .item().",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Worlds of 1 to 4 ranks; hidden: larger ones too."""
    return [Case(world_size=n, seed=seed) for n in ((1, 2, 3, 4, 6) if hidden else (1, 2, 3, 4))]


def _secret(case: Case, rank: int) -> int:
    return int(rng(case, rank).integers(100, 10_000))


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's secret."""
    return {"secret": np.array(_secret(case, rank))}


def oracle(case: Case) -> dict[str, Any]:
    """What each rank must return; `alone` is what it returns without communication."""
    n = case.world_size
    secrets = [_secret(case, rank) for rank in range(n)]
    return {
        "greeting": Want(
            [[rank, n, sum(secrets)] for rank in range(n)],
            per_rank=True,
            alone=[[rank, n, secrets[rank]] for rank in range(n)],
        )
    }


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """The values are compared by the engine; here the collectives are counted."""
    del case, want
    return [count_calls("bytes", got, {"all_reduce": 1}, why="one sum needs one all_reduce")]
