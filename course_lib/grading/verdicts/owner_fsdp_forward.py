"""`owner_fsdp_forward`: each unit's owner broadcasts it, everybody computes, the others delete it."""

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
    id="owner_fsdp_forward",
    lab="05_fsdp_hsdp",
    order=1,
    symbol="owner_fsdp_forward",
    title="Owners broadcast, the others delete",
    minutes=15,
    difficulty=2,
    importance=3,
    lines=10,
    points={"values": 1.0, "bytes": 0.5, "memory": 1.0},
    graded="Values: every rank's output equals the one-process result, and what each rank keeps is "
    "unchanged, with tied and frozen units, on 1 to 4 ranks (hidden: up to 6). Bytes: a rank moves each "
    "unit at most once (an all_reduce counts double). Memory: whenever a unit computes, at most one unit "
    "(the size of the largest) is whole beside what the rank owns, and none at the end.",
    closed=CLOSED,
    signature="(units, x)",
    hints=(
        "For one unit: who has the parameters, who needs room for them, and when does nobody need them any "
        "more?",
        "`unit.full` on the owner may simply be `unit.shard`. The others make an empty vector of "
        "`unit.numel` elements with the dtype of `unit.shard`. All ranks then call the same broadcast, with "
        "src=unit.owner.",
        "Loop over the units: set unit.full, dist.broadcast(unit.full, src=unit.owner), x = unit.forward(x), "
        "unit.full = None.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """More units than ranks and fewer; tied, frozen, larger ones."""
    found = [
        fsdp_case(1, seed, ["layer", "tied"], placement="owners"),
        fsdp_case(2, seed, ["layer", "wide", "layer", "tied", "layer"], placement="owners"),
        fsdp_case(3, seed, ["layer", "frozen", "layer", "layer", "wide"], placement="owners"),
        fsdp_case(4, seed, ["layer"] * 6, placement="owners"),
    ]
    if hidden:
        found += [
            fsdp_case(4, seed, ["tied", "layer", "layer"], placement="owners", dtype="float32"),
            fsdp_case(6, seed, ["layer", "frozen", "wide"] * 3, placement="owners"),
            fsdp_case(3, seed, ["layer"] * 4, width=210, placement="owners"),
        ]
    return found


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """The units this rank owns, and its samples."""
    return fsdp_inputs(case, rank)


def oracle(case: Case) -> dict[str, Any]:
    """The chain in one process; owners keep what they had."""
    return {"output": Want(run_alone(case, backward=False).outputs, per_rank=True), **kept_wants(case)}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """What moved, and what lived while units computed and at the end."""
    del want
    why = "The owner broadcasts a unit once, and nothing else has to move."
    free = "Set unit.full = None as soon as its forward is over."
    return [
        bytes_part(case, got, parameters=sum(sizes(case)), gradients=0, why=why),
        whole_part(case, got, [], free),
        end_part(case, got, vectors=0, why=free),
        memory_part(case, got, "forward", vectors=1, gathered=turns(case, "forward"), why=free),
    ]
