"""`choose_mesh`: which dp_replicate x dp_shard fits, and communicates least, on clusters never seen."""

from collections.abc import Callable
from typing import Any

from course_grader.expected.samples import samples
from course_grader.labs.lab05_fsdp_hsdp._meshes import (
    RULES,
    Rule,
    excess,
    fastest,
    memory_bytes,
    points,
    room_bytes,
    sizes_at,
    words_of,
)
from course_grader.parts.numbers import EveryPoint, Point
from course_grader.types import Exercise, Why

EXERCISE = Exercise(
    order=8,
    title="Which mesh?",
    minutes=30,
    difficulty=3,
    importance=4,
    lines=15,
    points={"memory": 0.5, "clock": 2.0},
    task="Write a function that returns (dp_replicate, dp_shard) for a model on a cluster: of the meshes "
    "that fit, the one that communicates least by the cost model above.",
    graded={
        "memory": "Two whole numbers whose product is the world size, and a mesh that fits into the GPUs "
        "(one always does).",
        "clock": "No other mesh that fits takes less time.",
    },
    details="12 points (hidden: 30) on clusters you have not seen, of one to three levels, with sizes "
    "that are no powers of two. By the stated formulas for memory and time; of meshes that take the "
    "same time any will do.",
    signature="(model, cluster, world_size)",
    forbids=("planner",),
    scenario=samples(stream=57, draw=points, clusters=["cluster"]),
    hints=(
        "How many meshes are there at all for 512 ranks? Few enough to try each.",
        "For dp_shard = k the shard group is range(k), the replicate group range(0, world_size, k): that "
        "tells the cost model which links they use.",
        "Two questions for each divisor k: does it fit (states cut by k, two units whole, activations), and "
        "how long does its communication take, all units together, with the four collectives of a unit and "
        "the groups they use? Among those that fit, the shortest wins.",
    ),
)

OPEN, HIDDEN = [12], [18]
SAME = 1e-6  # relative; below it two times are a tie


def _malformed(p: Point, answer: Any) -> Why | None:
    right = isinstance(answer, list) and len(answer) == 2 and all(type(x) is int and x > 0 for x in answer)
    if not right:
        return Why("the result must be (dp_replicate, dp_shard), two positive ints", f"got {answer!r:.60}")
    if answer[0] * answer[1] != p["world_size"]:
        product = f"{answer[0]} x {answer[1]}"
        return Why(f"dp_replicate x dp_shard must be the world size {p['world_size']}", f"got {product}")
    return None


def _too_large(p: Point, answer: Any) -> Why | None:
    need, room = memory_bytes(p["model"], answer[1]), room_bytes(p)
    if need <= room:
        return None
    return Why(
        f"a mesh must fit: dp_shard={answer[1]} needs {need / 1e9:.6g} GB on each GPU of "
        f"{room / 1e9:.4g} GB (16 P / dp_shard + 4 P / L + activations)."
    )


def _slower(p: Point, answer: Any) -> Why | None:
    if excess(p, answer[1]) <= 1 + SAME:
        return None
    return Why(
        "no mesh that fits may take less time",
        f"dp_shard={answer[1]} takes {excess(p, answer[1]):.4g} times as long as dp_shard={fastest(p)}",
    )


def _rule(rule: Rule) -> Callable[[Point], int]:
    return lambda p: rule(p, sizes_at(p))


def _dp_shard(answer: Any) -> int:
    return int(answer[1])


def _mesh(p: Point, dp_shard: int) -> list[int]:
    return [p["world_size"] // dp_shard, dp_shard]


NAMED: dict[str, Callable[[Point], int]] = {words: _rule(rule) for words, rule in RULES.items()}
PARTS = [
    EveryPoint(part="values", problem=_malformed, describe=words_of, gate=True),
    EveryPoint(
        part="memory", problem=_too_large, describe=words_of, rules=NAMED, same=_dp_shard, answer=_mesh
    ),
    EveryPoint(part="clock", problem=_slower, describe=words_of, rules=NAMED, same=_dp_shard, answer=_mesh),
]
