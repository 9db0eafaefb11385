"""`Zero2Optimizer`, stage 2: gradients are reduced to their owner during backward, and freed."""

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
    id="zero2_optimizer",
    lab="04_zero",
    order=5,
    symbol="Zero2Optimizer",
    title="Stage 2: shard the gradients too",
    minutes=30,
    difficulty=4,
    importance=4,
    lines=30,
    points={"values": 3.0, "bytes": 1.0, "memory": 2.0},
    graded="Values as for stage 1; all ranks use the same parameters. Bytes: with m backwards a step moves "
    "at most (m + 1)(P + n T) elements, where an all_reduce counts double and an all_gather counts its "
    "output; the constructor at most P + n T. Memory, from 2 ranks on, where a shard is P/n + T elements and "
    "V counts the values of state a parameter: torch optimizers hold at most V (P/n + the largest parameter) "
    "elements of state; after step and zero_grad at most V + 2 shards live beyond the model, at the end of "
    "every backward at most that and twice the largest parameter, and at any time before (activations "
    "aside) eight times, so never a full set of gradients; when backward ends, all gradients but two of the "
    "largest parameter have been reduced. Each bound has 64 T bytes to spare. One rank alone may skip "
    "communication.",
    closed=CLOSED,
    signature="(params, make_optimizer)",
    hints=(
        "Stage 1 waits for `step` with all gradients in memory. Which place in backward has one gradient, "
        "final, and could let go of it at once?",
        "Shard each parameter by itself: pad it to a multiple of n, keep your n-th as the tensor that the "
        "inner optimizer updates. In param.register_post_accumulate_grad_hook, reduce_scatter the padded "
        "gradient.",
        "At the end of the hook set param.grad = None, and *add* to the shard's .grad if it has one from an "
        "earlier backward. `zero_grad` forgets the shards' gradients; `step` is the inner step and one "
        "all_gather a parameter.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Several backwards a step, and inner optimizers that keep 2, 1 and 0 values a parameter."""
    found = [
        zero_case(1, seed, "SGD with momentum"),
        zero_case(2, seed, "Adam", 2, tied=True, depth=16),
        zero_case(3, seed, "SGD with momentum", frozen=True, depth=16),
        zero_case(4, seed, "SGD", unused=True, depth=16, optional_from=1),
    ]
    if hidden:
        found += [
            zero_case(5, seed, "Adam", 2, tied=True, frozen=True, depth=16),
            zero_case(6, seed, "SGD with momentum", width=23, depth=16, unused=True),
            zero_case(3, seed, "SGD", width=160, depth=6),
        ]
    return found


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """The same weights everywhere, and this rank's batches."""
    return zero_inputs(case, rank)


def oracle(case: Case) -> dict[str, Any]:
    """One process on the whole batch."""
    return zero_oracle(case)


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """What moved and what stayed, also at the end of backward."""
    del want
    reductions = case.params["microbatches"]
    return [
        bytes_part(case, got, num_reductions=reductions),
        memory_part(case, got, with_gradients=True),
    ]
