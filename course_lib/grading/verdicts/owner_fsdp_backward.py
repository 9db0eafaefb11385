"""`owner_fsdp_backward`: gradients are reduced to each unit's owner, who updates."""

from __future__ import annotations

from typing import Any

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData
from course_lib.grading.fsdp_oracle import (
    CLOSED,
    bytes_part,
    end_part,
    fsdp_case,
    fsdp_inputs,
    least_backward,
    memory_part,
    sizes,
    turns,
    updated_wants,
    whole_part,
)

EXERCISE = Exercise(
    id="owner_fsdp_backward",
    lab="05_fsdp_hsdp",
    order=2,
    symbol="owner_fsdp_backward",
    title="Reduce to the owner, who updates",
    minutes=20,
    difficulty=3,
    importance=3,
    lines=14,
    points={"values": 1.5, "bytes": 0.5, "memory": 1.0},
    graded="Values: after one call every owner's parameters equal one step of SGD in one process on all "
    "ranks' samples; frozen units stay as they are; 1 to 4 ranks (hidden: up to 6). Bytes: each unit's "
    "parameters move at most once, its gradients at most once (an all_reduce counts double), a frozen "
    "unit's not at all. Memory: whenever a unit begins its backward, at most three vectors of the size of "
    "the largest unit (its parameters, and two units' gradients on their way) live beside what the rank "
    "owns, none at the end.",
    closed=CLOSED,
    signature="(units, grad, lr) -> None",
    hints=(
        "It is the forward loop the other way round, and one more message: what does each rank have after "
        "unit.backward, and who needs the sum of it?",
        "grad, full_grad = unit.backward(grad) gives the gradients of the unit's input and of its `full`. "
        "dist.reduce(full_grad, dst=unit.owner) leaves the sum on the owner only.",
        "For unit in reversed(units): broadcast as in forward; backward; unit.full = None; if full_grad is "
        "not None: reduce, and on the owner unit.shard -= lr * full_grad / world_size.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """More units than ranks and fewer; tied, frozen, larger ones."""
    found = [
        _case(1, seed, ["layer", "tied"]),
        _case(2, seed, ["layer", "wide", "layer", "tied", "layer"]),
        _case(3, seed, ["layer", "frozen", "layer", "layer", "wide"]),
        _case(4, seed, ["layer"] * 6),
    ]
    if hidden:
        found += [
            _case(4, seed, ["tied", "layer", "frozen"], dtype="float32"),
            _case(6, seed, ["layer", "part frozen", "layer"] * 3),
            _case(3, seed, ["layer"] * 4, width=210),
        ]
    return found


def _case(n: int, seed: int, kinds: list[str], width: int = 47, **more: str) -> Case:
    return fsdp_case(n, seed, kinds, width=width, placement="owners", lr=0.5, **more)


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """The units this rank owns, and its samples."""
    return fsdp_inputs(case, rank)


def oracle(case: Case) -> dict[str, Any]:
    """One step of SGD in one process."""
    return updated_wants(case, case.params["lr"])


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """What moved, and what lived while units computed and at the end."""
    del want
    why = "One broadcast of the parameters, one reduce of the gradients to the owner, none if frozen."
    free = "Free unit.full after backward, and the whole gradient once it is reduced."
    moved = {"parameters": sum(sizes(case)), "gradients": sum(sizes(case, trained_only=True))}
    return [
        bytes_part(case, got, **moved, why=why, least=least_backward(case)),
        whole_part(case, got, [], free),
        end_part(case, got, vectors=0, why=free),
        memory_part(case, got, "backward", vectors=3, gathered=turns(case, "backward"), ahead=2, why=free),
    ]
