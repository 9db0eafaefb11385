"""`to_fsdp2`: each block a unit of torch's FSDP2, gathered again in backward, on the mesh given.

Longer than 120 lines: what is gathered, when, how much and from whom are rules of its own.
"""

from course_grader.inside.programs.lab13.toy import DIM, shapes
from course_grader.inside.programs.lab13.toy import HIDDEN as HIDDEN_DIM
from course_grader.labs.lab13_frameworks_and_operations._torch_model import (
    ITEM,
    case,
    ceil_share,
    kept_at_most,
    torch_model,
    trained,
)
from course_grader.parts.bytes import BytesAtMost
from course_grader.parts.common import Window, calls_in
from course_grader.parts.memory import Peak
from course_grader.parts.order import Holds, each_rank
from course_grader.types import Case, Exercise, Observation, Why

FORWARD = Window("forward 1", "backward 1", "forward")
BACKWARD = Window("backward 1", "ends 1", "backward")
STEP = Window("forward 1", "ends 1", "a step")
BLOCKS_AT_ONCE = 3.5
"""One in use, one ahead, and what a gather comes through."""

EXERCISE = Exercise(
    order=1,
    title="Hand a model to FSDP2",
    minutes=15,
    difficulty=2,
    importance=5,
    lines=5,
    points={"values": 0.5, "memory": 1.0, "bytes": 0.5},
    task="Write a function that shards a model with torch's `fully_shard`, in place, and returns it.",
    graded={
        "values": "Weights after two steps equal those of one process.",
        "memory": "A rank keeps its share and nothing beside it; whole weights are there one block at a "
        "time, in backward too (the next may come ahead).",
        "bytes": "Weights are gathered along the last axis of the mesh only, gradients move once.",
    },
    details="2 and 4 ranks (hidden: 3, 6), meshes of one axis (dp_shard) and of two (dp_replicate, "
    "dp_shard), also one whose ranks are not neighbours. `model.blocks` are the blocks; the head is "
    "the rest. Memory: at most ceil(rows / n) rows of each weight; no gather larger than a block; all blocks "
    "are gathered again in backward; beside activations and gradients at most 3.5 blocks live at once (one "
    "in use, one ahead, and what they come through). Bytes of a rank in a step: twice all weights gathered, "
    "once all gradients reduce_scattered, and over dp_replicate an all_reduce of its own shard.",
    signature="(model, mesh)",
    forbids=("the course's engines",),
    scenario=torch_model(),
    hints=(
        "`fully_shard(module, mesh=mesh)` turns a module into a unit. What becomes one, what holds the rest?",
        "Blocks first, the model last: a unit leaves out what is a unit already.",
        "The mesh says it all: with two axes `fully_shard` replicates along the first and shards along the "
        "second. `reshard_after_forward` says whether a unit stays whole after forward: what is its default "
        "for a block, what for the model?",
    ),
)

ALL = "dp_replicate dp_shard"
OPEN = [
    case({"dp_shard": 2}, "dp_shard", data="dp_shard", num_blocks=6, rows=1),
    case({"dp_replicate": 2, "dp_shard": 2}, ALL, data=ALL),
    case({"dp_shard": 2, "tp": 2}, "dp_shard", data="dp_shard", num_blocks=2),
]
HIDDEN = [
    case({"dp_shard": 3}, "dp_shard", data="dp_shard", num_blocks=6, rows=1),
    case({"dp_replicate": 2, "dp_shard": 3}, ALL, data=ALL),
    case({"dp_replicate": 2, "dp_shard": 1}, ALL, data=ALL),
]

expected = trained
MISTAKES = {"every rank trains on its own rows: no gradient crosses the ranks": {"alone": True}}


def _shards(case: Case) -> int:
    return int(case.params["mesh"]["dp_shard"])


def _bytes_of(case: Case, prefix: str = "") -> int:
    """Whole weights, each shard filled up to the longest."""
    n, blocks = _shards(case), case.params["num_blocks"]
    return sum(n * ITEM * ceil_share(k, blocks, n) for k in shapes(blocks) if k.startswith(prefix))


def _held(seen: Observation, rank: int) -> Why | None:
    n, blocks = _shards(seen.case), seen.case.params["num_blocks"]
    for name, held in seen.got[rank].values["held"].items():
        most = ceil_share(name, blocks, n)
        if held > most:
            return Why(
                f"between steps a rank may keep {most} elements of {name}, its share of {n}",
                f"rank {rank} keeps {held}",
                "Is every parameter inside a unit of `fully_shard`, on this mesh?",
            )
    return None


def _gathers(seen: Observation, rank: int, window: Window) -> list[int]:
    calls = calls_in(seen.traces[rank], window)
    return [c.moved_bytes for c in calls if c.op.startswith("all_gather")]


def _one_at_a_time(seen: Observation, rank: int) -> Why | None:
    block, blocks = _bytes_of(seen.case, "blocks.0."), seen.case.params["num_blocks"]
    largest = max((*_gathers(seen, rank, FORWARD), *_gathers(seen, rank, BACKWARD)), default=0)
    if largest > block:
        return Why(
            f"a gather may bring one block, {block:,} bytes",
            f"on rank {rank} one brings {largest:,}",
            "Make each block a unit of its own before the model becomes one.",
        )
    again = sum(_gathers(seen, rank, BACKWARD))
    if _shards(seen.case) > 1 and again < blocks * block:
        return Why(
            f"blocks must be freed after forward and gathered again in backward, {blocks * block:,} bytes",
            f"rank {rank} gathers {again:,} there",
            "Say so with `reshard_after_forward`.",
        )
    return None


def _forward_peak(case: Case) -> int:
    """Activations, the head, which is the root's and stays, and a few blocks."""
    rows, blocks = int(case.params["rows"]), int(case.params["num_blocks"])
    activations = ITEM * rows * (blocks * (DIM + 4 * HIDDEN_DIM) + 2 * DIM)
    return activations + _bytes_of(case, "head") + int(BLOCKS_AT_ONCE * _bytes_of(case, "blocks.0."))


def _backward_peak(case: Case) -> int:
    """This rank's share of the gradients, and a few blocks."""
    return _bytes_of(case) // _shards(case) + int(BLOCKS_AT_ONCE * _bytes_of(case, "blocks.0."))


def _bytes(case: Case) -> int:
    whole, copies = _bytes_of(case), case.params["mesh"].get("dp_replicate", 1)
    return 3 * whole + (2 * whole // _shards(case) if copies > 1 else 0) + 64


def _from_whom(seen: Observation, rank: int) -> Why | None:
    n = _shards(seen.case)
    calls = calls_in(seen.traces[rank], STEP)
    far = next((c for c in calls if c.op.startswith("all_gather") and len(c.group.ranks) > n), None)
    if far is None:
        return None
    return Why(
        f"weights are gathered from the {n} rank{'s' * (n > 1)} of dp_shard",
        f"on rank {rank} a gather asks {len(far.group.ranks)}",
        "Hand the mesh to `fully_shard`.",
    )


WHY = "Blocks come whole one after the other: does something gather them before their turn, or keep them?"
PARTS = [
    Holds(part="memory", problem=each_rank(_held), passed="each rank keeps its share"),
    kept_at_most(lambda case: _bytes_of(case) // _shards(case)),
    Holds(part="memory", problem=each_rank(_one_at_a_time), passed="one block whole at a time"),
    Peak(at_most=_forward_peak, windows=[FORWARD], why=WHY),
    Peak(at_most=_backward_peak, windows=[BACKWARD], why=WHY),
    Holds(part="bytes", problem=each_rank(_from_whom), passed="gathered along dp_shard only"),
    BytesAtMost(
        at_most=_bytes,
        windows=[STEP],
        why="Weights twice, gradients once, a shard over dp_replicate: is a parameter in two units?",
    ),
]
