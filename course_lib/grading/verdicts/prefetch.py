"""`prefetched_step`: gathers ahead of compute, reductions behind it."""

from __future__ import annotations

from typing import Any

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData, Want
from course_lib.grading.fsdp_clock import clock_part, order_part
from course_lib.grading.fsdp_oracle import (
    CLOSED,
    bytes_part,
    end_part,
    fsdp_case,
    fsdp_inputs,
    gradient_wants,
    item,
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
from course_lib.grading.fsdp_toys import MOST_WHOLE, STRAY

EXERCISE = Exercise(
    id="prefetch",
    lab="05_fsdp_hsdp",
    order=5,
    symbol="prefetched_step",
    title="Prefetch: one unit ahead",
    minutes=30,
    difficulty=4,
    importance=5,
    lines=28,
    points={"values": 1.5, "bytes": 0.5, "memory": 1.0, "order": 1.5, "clock": 1.0},
    graded="Values: output and gradients as before, at depth 0, 1 and 2 (hidden: more than there are units), "
    "on 1 to 4 ranks. Bytes: as in the two exercises before, together. Memory: whenever a unit "
    "computes, at most 1 + depth units (the size of the largest) are whole or on the way, in backward "
    "with at most three such vectors for gradients beside them; nothing whole is left. Order, for depth"
    " 1 and more: when unit i begins to compute, the gathers of the next `depth` units, as far as there"
    " are any, have been launched and one is still in flight; no reduction is awaited before the next "
    "unit's backward has begun; all are awaited at the end, none by polling. Clock, depth 1: on "
    "simulated clusters where a gather takes half as long as a unit's forward (inside a server) and "
    "twice as long (across), at least 80% of what can be hidden is.",
    closed=(*CLOSED, "course_lib.grading.fsdp_clock"),
    signature="(units, x, loss_grad, depth)",
    hints=(
        "Separate launching a gather from waiting for it. At which line of your forward loop do you know "
        "which unit comes next, while nobody needs it yet?",
        "Write launch(unit), which sets unit.full and remembers the Work of the all_gather (async_op=True) "
        "unless the unit is whole already. At the top of the loop: launch units[i : i + 1 + depth], wait "
        "for unit i's, compute, free. The same loop serves units[::-1].",
        "Keep (work, full_grad) of the last reduce_scatter in a variable. After the next unit's backward, "
        "wait for it, then launch the new one. Divide by the world size when all have been awaited.",
    ),
)

CLOCKED = "equal layers"


def cases(seed: int, hidden: bool) -> list[Case]:
    """Depths 0 to 2; tied, frozen, larger units; equal ones for the clock."""
    found = [
        _case(1, seed, ["layer", "tied", "frozen"], 1),
        _case(2, seed, ["layer", "tied", "wide", "layer", "layer", "tied"], 1),
        _case(3, seed, ["layer", "frozen", "layer", "part frozen", "layer"], 0),
        _case(4, seed, ["layer"] * 7, 2),
        _case(2, seed, ["layer"] * 8, 1, clock=CLOCKED),
    ]
    if hidden:
        found += [
            _case(3, seed, ["frozen", *["layer", "tied"] * 4], 2, dtype="float32"),
            _case(4, seed, ["layer"] * 12, 1, clock=CLOCKED),
            _case(4, seed, ["layer"] * 5, 1, width=211),
            _case(2, seed, ["layer", "layer"], 3),
        ]
    return found


def _case(n: int, seed: int, kinds: list[str], depth: int, width: int = 47, **more: str) -> Case:
    return fsdp_case(n, seed, kinds, width=width, depth=depth, **more)


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """This rank's shards and samples."""
    return fsdp_inputs(case, rank)


def oracle(case: Case) -> dict[str, Any]:
    """Output and gradients in one process; ranks keep what they had."""
    local = run_alone(case)
    output = Want(local.outputs, per_rank=True)
    return {"output": output, STRAY: Want([]), **gradient_wants(case, local.grads), **kept_wants(case)}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """What moved, what lived, what was on the wire while units computed, and what that is worth."""
    del want
    depth, last = case.params["depth"], len(case.params["kinds"]) - 1
    parts = [_bytes(case, got, last), *_memory(case, got, depth)]
    if case.world_size > 1 and depth > 0:
        parts.append(order_part(case, got))
    if case.params.get("clock"):
        parts.append(clock_part(case, got))
    return parts


def _bytes(case: Case, got: list[RankData], last: int) -> Part:
    why = "Each unit is gathered for forward and for backward, the last one once; gradients are reduced once."
    parameters = 2 * sum(sizes(case)) - unit_bytes(case, last)
    gradients = sum(sizes(case, trained_only=True))
    least = sum(sizes(case)) + least_backward(case, kept_last=True)
    return bytes_part(case, got, parameters=parameters, gradients=gradients, why=why, least=least)


def _whole_at_once(case: Case, got: list[RankData], depth: int, why: str) -> Part:
    """Judge parameters apart from gradients, which the other bounds do not."""
    largest = max(sizes(case)) // item(case)
    for rank, data in enumerate(got):
        most = data.values[MOST_WHOLE]
        if case.world_size > 1 and (type(most) is not int or most > (1 + depth) * largest):
            text = (
                f"when a unit computes, at most 1 + depth = {1 + depth} units of {largest:,} elements may be "
                f"whole or on the way; on rank {rank} there were {most} elements. {why}"
            )
            return Part("memory", False, text)
    return Part("memory", True, f"at most {1 + depth} units whole or on the way")


def _memory(case: Case, got: list[RankData], depth: int) -> list[Part]:
    why = (
        "Free a unit as soon as it has computed, launch no further ahead than depth, drop reduced gradients."
    )
    gathered = turns(case, "forward") + turns(case, "backward", kept_last=True)
    return [
        _whole_at_once(case, got, depth, why),
        whole_part(case, got, [], why),
        end_part(case, got, vectors=0, beside=shard_gradients(case), why=why),
        memory_part(case, got, "forward", vectors=1 + depth, gathered=gathered, ahead=1 + depth, why=why),
        memory_part(
            case,
            got,
            "backward",
            vectors=4 + depth,
            gathered=gathered,
            ahead=1 + depth,
            beside=lambda unit: shard_gradients(case, unit + 1),
            why=why,
        ),
    ]
