"""`fsdp_forward`: gather each unit from equal shards, compute, reshard; keep the last."""

from __future__ import annotations

from typing import Any

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want
from course_lib.grading.fsdp_oracle import (
    CLOSED,
    bytes_part,
    end_part,
    fsdp_case,
    fsdp_inputs,
    kept_wants,
    memory_part,
    run_alone,
    sizes,
    turns,
    whole_part,
)

EXERCISE = Exercise(
    id="fsdp_forward",
    lab="05_fsdp_hsdp",
    order=3,
    symbol="fsdp_forward",
    title="Gather, compute, reshard",
    minutes=15,
    difficulty=2,
    importance=5,
    lines=9,
    points={"values": 1.0, "bytes": 0.5, "memory": 1.5},
    graded="Values: every rank's output equals the one-process result and the shards are unchanged, for "
    "sizes that n does not divide, tied and frozen units, on 1 to 4 ranks (hidden: up to 6). Bytes: a "
    "rank's collectives move each padded unit at most once (an all_gather counts its output, an all_reduce "
    "counts double). Memory: whenever a unit computes, at most one unit (the size of the largest) is whole; "
    "at the end only the last unit is, for its backward comes next.",
    closed=CLOSED,
    signature="(units, x)",
    hints=(
        "Compare with the owners' version: which single collective lets every rank contribute its part and "
        "get the whole?",
        "dist.all_gather_into_tensor(full, shard) fills full [n * len(shard)] with the shards in rank order. "
        "The padding is at the end of the vector, where unit.forward does not look.",
        "Loop: unit.full = shard.new_empty(n * len(shard)), all_gather_into_tensor(unit.full, unit.shard), "
        "x = unit.forward(x), then unit.full = None unless unit is units[-1]. Keep no other name for it.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Sizes that n divides and not; tied, frozen, larger units."""
    found = [
        fsdp_case(1, seed, ["layer", "tied"]),
        fsdp_case(2, seed, ["layer", "wide", "layer", "tied", "layer"]),
        fsdp_case(3, seed, ["layer", "frozen", "layer", "layer", "wide"], width=46),
        fsdp_case(4, seed, ["tied"] * 6),
    ]
    if hidden:
        found += [
            fsdp_case(4, seed, ["tied"], width=3),
            fsdp_case(5, seed, ["layer", "frozen", "part frozen"] * 3, dtype="float32"),
            fsdp_case(6, seed, ["layer"] * 4, width=211),
        ]
    return found


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's shards and samples."""
    return fsdp_inputs(case, rank)


def oracle(case: Case) -> dict[str, Any]:
    """The chain in one process; ranks keep what they had."""
    return {"output": Want(run_alone(case, backward=False).outputs, per_rank=True), **kept_wants(case)}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """What moved, what lived while units computed, and what is left."""
    del want
    why = "One all_gather a unit brings every rank all it needs."
    free = "Set unit.full = None as soon as its forward is over, and keep no other name for the vector."
    last = len(case.params["kinds"]) - 1
    begin = "Backward begins with the last unit: freeing it would cost one more all_gather."
    return [
        bytes_part(case, got, parameters=sum(sizes(case)), gradients=0, why=why),
        end_part(case, got, vectors=1, why=free),
        whole_part(case, got, [last], begin),
        memory_part(case, got, "forward", vectors=1, gathered=turns(case, "forward"), why=free),
    ]
