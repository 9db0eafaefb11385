"""`fsdp_backward`: gather again, backward, reduce_scatter the gradients to their shards."""

from __future__ import annotations

from typing import Any

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want
from course_lib.grading.fsdp_oracle import (
    CLOSED,
    bytes_part,
    end_part,
    fsdp_case,
    fsdp_inputs,
    gradient_wants,
    kept_wants,
    least_backward,
    memory_part,
    run_alone,
    shard_gradients,
    sizes,
    turns,
    unit_bytes,
    whole_part,
)
from course_lib.grading.fsdp_toys import STRAY

EXERCISE = Exercise(
    id="fsdp_backward",
    lab="05_fsdp_hsdp",
    order=4,
    symbol="fsdp_backward",
    title="Gather again, reduce_scatter",
    minutes=25,
    difficulty=3,
    importance=5,
    lines=15,
    points={"values": 2.0, "bytes": 1.0, "memory": 1.0},
    graded="Values: every `unit.grad` is this rank's shard of the mean gradient, zero in the padding, None "
    "for frozen units, and the shards are unchanged; sizes that n does not divide, weights tied inside a "
    "unit, frozen units and parts of units, on 1 to 4 ranks (hidden: up to 6). Bytes: a rank's collectives "
    "move each padded unit but the last at most once (an all_gather counts its output), and the gradients of "
    "the units that train at most once (an all_reduce counts double). Memory: whenever a unit begins its "
    "backward, at most four vectors of the size of the largest unit live beside shards and their gradients "
    "(its parameters, the others for gradients on their way); none at the end.",
    closed=CLOSED,
    signature="(units, grad) -> None",
    hints=(
        "Forward left one unit whole. Which one, and why does that save a message? What is the mirror image "
        "of an all_gather?",
        "dist.reduce_scatter_tensor(mine, full_grad) sums full_grad [n * len(mine)] over the ranks and "
        "leaves rank r the r-th part. full_grad is as long as unit.full, with zeros in the padding.",
        "For unit in reversed(units): gather if unit.full is None; grad, full_grad = unit.backward(grad); "
        "unit.full = None; if full_grad is not None: unit.grad = empty_like(unit.shard), reduce_scatter, "
        "divide by the world size.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Sizes that n divides and not; tied, frozen, larger units."""
    found = [
        fsdp_case(1, seed, ["layer", "tied", "frozen"]),
        fsdp_case(2, seed, ["layer", "wide", "layer", "tied", "layer"]),
        fsdp_case(3, seed, ["layer", "frozen", "layer", "layer", "part frozen"], width=46),
        fsdp_case(4, seed, ["tied"] * 6),
    ]
    if hidden:
        found += [
            fsdp_case(4, seed, ["frozen", "tied", "layer", "layer"], width=3),
            fsdp_case(5, seed, ["layer", "frozen", "part frozen", "layer"] * 2, dtype="float32"),
            fsdp_case(6, seed, ["layer"] * 4, width=211),
        ]
    return found


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's shards and samples."""
    return fsdp_inputs(case, rank)


def oracle(case: Case) -> dict[str, Any]:
    """Gradients of the mean loss in one process; ranks keep what they had."""
    return {STRAY: Want([]), **gradient_wants(case, run_alone(case).grads), **kept_wants(case)}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """What moved, what lived while units computed, and what is left."""
    del want
    why = (
        "The last unit is still whole; each other one is gathered once more, and its gradients reduced once."
    )
    free = "Free unit.full after backward; keep only this rank's part of the gradient."
    kept = unit_bytes(case, len(case.params["kinds"]) - 1)  # lives at "begins" already
    parameters, gradients = sum(sizes(case)) - kept, sum(sizes(case, trained_only=True))
    return [
        bytes_part(
            case,
            got,
            parameters=parameters,
            gradients=gradients,
            why=why,
            least=least_backward(case, kept_last=True),
        ),
        whole_part(case, got, [], free),
        end_part(case, got, vectors=0, beside=shard_gradients(case) - kept, why=free),
        memory_part(
            case,
            got,
            "backward",
            vectors=4,
            gathered=turns(case, "backward", kept_last=True),
            ahead=2,
            beside=lambda unit: shard_gradients(case, unit + 1) - kept,
            why=free,
        ),
    ]
