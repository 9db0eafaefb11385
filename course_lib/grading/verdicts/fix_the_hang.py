"""`fix_the_hang`: two programs that wait for ever, one call missing and two calls in another order."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want, rng
from course_lib.grading.measure import handed_bytes_between

EXERCISE = Exercise(
    id="fix_the_hang",
    lab="00_start_here",
    order=3,
    symbol="end_of_step",
    title="Two programs that wait for ever",
    minutes=15,
    difficulty=2,
    importance=5,
    lines=9,
    points={"values": 2.0, "bytes": 1.0},
    graded="`end_of_step` ends, and returns on every rank, at 1-4 ranks (hidden: 5, 6): the mean of "
    "all losses (ranks hold different numbers of them, one of them none), the sum of all "
    "tokens, and the learning rate of rank 0. Bytes: each rank hands at most 64 bytes to "
    "collectives and sends together (four float64 numbers are 32; barriers are free), so no "
    "losses travel one by one.",
    signature="(losses, tokens, learning_rate)",
    hints=(
        "Read both reports again: which rank is missing, and what does it do instead? Which two calls met?",
        "A collective is a call of the whole group. Move every collective out of the branches that only "
        "some ranks take; what only rank 0 wants (printing) stays inside.",
        "Program 1: all ranks all_reduce, then rank 0 prints. Program 2: choose one order, "
        "and let all ranks follow it; any order will do.",
    ),
)

_WITHOUT_LOSSES = {3: 1, 6: 0}  # world size: rank


def cases(seed: int, hidden: bool) -> list[Case]:
    """Worlds of 1 to 4 ranks, one rank of some without losses; hidden: 5 and 6 too."""
    worlds = [_case(n, seed) for n in ((1, 2, 3, 4, 5, 6) if hidden else (1, 2, 3, 4))]
    again = Case(world_size=2, seed=seed, params={"again": True}, label="2 ranks, a second step", trace=False)
    return [*worlds, again]


def _case(world_size: int, seed: int) -> Case:
    empty = _WITHOUT_LOSSES.get(world_size)
    label = "" if empty is None else f"{world_size} ranks, no losses on rank {empty}"
    return Case(world_size=world_size, seed=seed, label=label)


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """Other losses, as many as no other rank has, tokens and a learning rate; only rank 0's rate counts."""
    numbers = rng(case, rank)
    count = 20 + 7 * rank + int(numbers.integers(0, 6))
    count = 0 if rank == _WITHOUT_LOSSES.get(case.world_size) else count
    return {
        "losses": numbers.uniform(1, 4, size=count),
        "tokens": np.array(float(numbers.integers(1_000, 9_000))),
        "learning_rate": np.array(numbers.uniform(1e-5, 1e-3)),
    }


def oracle(case: Case) -> dict[str, Any]:
    """One process that has everything."""
    shards = [inputs(case, rank) for rank in range(case.world_size)]
    losses = [shard["losses"] for shard in shards]
    tokens = [shard["tokens"].item() for shard in shards]
    rates = [shard["learning_rate"].item() for shard in shards]
    means = [values.mean().item() if len(values) else float("nan") for values in losses]
    return {
        "mean_loss": Want(
            np.concatenate(losses).mean().item(),
            alone=means,
            near={
                "the means of the ranks are averaged, though ranks hold different numbers of losses": np.mean(
                    means
                )
            },
        ),
        "tokens": Want(sum(tokens), alone=tokens),
        "learning_rate": Want(
            rates[0],
            alone=rates,
            near={"the ranks' rates are averaged": np.mean(rates), "the ranks' rates are added": sum(rates)},
        ),
    }


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Few bytes; that it ends was a gate."""
    del want
    if "again" in case.params:
        return []
    why = "sums travel, not the losses themselves"
    return [handed_bytes_between("bytes", got, 0, 64, why=why)]
