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
    "ranks (hidden: 6); secrets are ints from -10^12 to 10^12, and 0 on one rank. It is called twice, with "
    "different secrets. Bytes: each call launches exactly one collective on each rank, an all_reduce "
    "(barriers are free; one rank alone may skip it).",
    signature="(secret)",
    hints=(
        "Two functions of torch.distributed say who it is and how many there are: nobody communicates.",
        "The sum needs every secret. One collective leaves the sum of a tensor on every rank, in place.",
        "Put the secret into an integer tensor of one element, sum it over the ranks, take .item().",
    ),
)

CALLS = {"greeting": "secret", "greeting of the second call": "second secret"}
_RANK_OF_0 = 1  # its secrets are 0, in worlds of three and more


def cases(seed: int, hidden: bool) -> list[Case]:
    """Worlds of 1 to 4 ranks; hidden: larger ones too."""
    return [Case(world_size=n, seed=seed) for n in ((1, 2, 3, 4, 6) if hidden else (1, 2, 3, 4))]


def _secret(case: Case, rank: int, name: str) -> int:
    """No rounding, no int32 holds it; a multiple of 60, so that a mean over 1 to 6 ranks is an int too."""
    if case.world_size > 2 and rank == _RANK_OF_0:
        return 0
    largest = 10**12 // 60
    return 60 * int(rng(case, rank, list(CALLS.values()).index(name)).integers(-largest, largest))


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's secrets, one a call."""
    return {name: np.array(_secret(case, rank, name)) for name in CALLS.values()}


def oracle(case: Case) -> dict[str, Any]:
    """What each rank must return; `alone` is what it returns without communication."""
    n = case.world_size
    want: dict[str, Any] = {}
    for greeting, name in CALLS.items():
        secrets = [_secret(case, rank, name) for rank in range(n)]
        want[greeting] = Want(
            [[rank, n, sum(secrets)] for rank in range(n)],
            per_rank=True,
            alone=[[rank, n, secrets[rank]] for rank in range(n)],
        )
    return want


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """The values are compared by the engine; here their types are, and the collectives are counted."""
    del case, want
    for rank, data in enumerate(got):
        types: list[list[str]] = [data.values[f"types of the {greeting}"] for greeting in CALLS]
        other = next((row for row in types if row != ["int"] * 3), None)
        if other is not None:
            seen = ", ".join(other)
            text = f"`greeting` must be three ints; rank {rank} returned ({seen}). Sum in an integer tensor."
            return [Part("values", False, text, gate=True)]
    why = "one sum needs one all_reduce, and the check asks for two sums"
    return [count_calls("bytes", got, {"all_reduce": len(CALLS)}, why=why)]
