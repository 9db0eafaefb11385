"""`ZeroOptimizer`, stage 1: every rank keeps 1/n of the optimizer state and updates 1/n of the parameters."""

from __future__ import annotations

from typing import Any

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData
from course_lib.grading.zero_oracle import (
    CLOSED,
    bytes_part,
    memory_part,
    zero_case,
    zero_inputs,
    zero_oracle,
)

EXERCISE = Exercise(
    id="zero_optimizer",
    lab="04_zero",
    order=4,
    symbol="ZeroOptimizer",
    title="Stage 1: shard the optimizer state",
    minutes=30,
    difficulty=4,
    importance=5,
    lines=26,
    points={"values": 3.0, "bytes": 1.0, "memory": 2.0},
    graded="Values, at 1-4 ranks (hidden: 5, 6): after each of three steps every rank holds the weights of "
    "one process on the whole batch, with Adam, SGD and momentum, tied, frozen and unused weights, a layer "
    "that is used from the second step on, two backwards a step. Bytes: a step moves at most 2 (P + n T) "
    "elements (P parameters in T tensors), where "
    "an all_reduce counts double and an all_gather counts its output; the constructor at most P + n T. "
    "Memory, from 2 ranks on, where a shard is P/n + T elements and V counts the values of state a "
    "parameter: torch optimizers hold at most V (P/n + the largest parameter) elements of state, and after "
    "step and zero_grad at most V + 2 shards live beyond the model (64 T bytes to spare). One rank alone "
    "may skip communication.",
    closed=CLOSED,
    signature="(params, make_optimizer)",
    hints=(
        "The inner optimizer must never see a whole parameter: it updates whatever tensors you give it. "
        "Which tensor holds exactly this rank's share of the model?",
        "In the constructor: flatten, pad, and copy your shard; build the inner optimizer on [shard]. In "
        "`step`: flatten and pad the gradients, dist.reduce_scatter_tensor(own, flat), divide, and make it "
        "the shard's .grad.",
        "After the inner step, dist.all_gather_into_tensor(flat, shard) and copy the pieces of `flat` back "
        "into the parameters under torch.no_grad. Keep no flat vector in `self`, and let go of the shard's "
        ".grad, or the memory part will find it.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Inner optimizers that keep 2, 1 and 0 values a parameter."""
    found = [
        zero_case(1, seed, "SGD with momentum"),
        zero_case(2, seed, "SGD", 2),
        zero_case(3, seed, "SGD with momentum", tied=True, optional_from=1),
        zero_case(4, seed, "Adam", frozen=True, unused=True),
    ]
    if hidden:
        found += [
            zero_case(5, seed, "Adam", 2, tied=True, frozen=True),
            zero_case(6, seed, "SGD with momentum", width=23, unused=True),
            zero_case(3, seed, "Adam", width=160, depth=6),
        ]
    return found


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """The same weights everywhere, and this rank's batches."""
    return zero_inputs(case, rank)


def oracle(case: Case) -> dict[str, Any]:
    """One process on the whole batch."""
    return zero_oracle(case)


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """What moved and what stayed."""
    del want
    return [bytes_part(case, got, num_reductions=1), memory_part(case, got, with_gradients=False)]
