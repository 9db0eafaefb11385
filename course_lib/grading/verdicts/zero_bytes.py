"""`zero_bytes`: bytes of model states a rank at each ZeRO stage, against the paper's closed formula."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Case, Exercise, Part, RankData
from course_lib.grading.points import Formula, Point, judge, no_inputs, no_oracle, point_case

EXERCISE = Exercise(
    id="zero_bytes",
    lab="04_zero",
    order=1,
    symbol="zero_bytes",
    title="The ZeRO formula",
    minutes=10,
    difficulty=1,
    importance=5,
    lines=8,
    points={"stage_0": 0.5, "stage_1": 0.5, "stage_2": 0.5, "stage_3": 0.5},
    graded="Bytes a rank within 0.1% of the paper's formula: 7.5 billion parameters on 64 ranks, 120 / "
    "31.4 / 16.6 / 1.9 GB, and points you have not seen; one part a stage.",
    signature="(num_params, world_size, stage, optimizer_bytes)",
    closed=("course_lib.parallel", "course_lib.cost"),
    hints=(
        "Three lines of a bill: parameters, gradients, optimizer. Each is held whole or as a share.",
        "In mixed precision a parameter and a gradient have 2 bytes each; `optimizer_bytes` is the rest of "
        "what a parameter needs (12 for Adam).",
        "Stage 1 divides the optimizer's line by the world size, stage 2 the gradients' too, stage 3 all.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """The paper's row, then unseen ones, each at all stages."""
    draw = np.random.default_rng([seed, 41])
    rows = [(7_500_000_000, 64, 12), (1_000_003, 5, 0), (3_000_001, 64, 6)]
    for row in range(12 if hidden else 4):
        ranks = (2, 9) if row % 2 else (9, 2000)  # few ranks show what is divided by n - 1 or n + 1
        size = int(10 ** draw.uniform(6, 12))
        rows.append((size, int(draw.integers(*ranks)), int(draw.choice([4, 6, 8, 12, 16]))))
    points = [
        {"num_params": size, "world_size": n, "stage": stage, "optimizer_bytes": k}
        for size, n, k in rows
        for stage in range(4)
    ]
    return point_case(seed, points)


inputs, oracle = no_inputs, no_oracle


def _bytes(point: Point, *, stage: int | None = None, wide: int = 2, k: int | None = None) -> float:
    size, n = point["num_params"], point["world_size"]
    stage = point["stage"] if stage is None else stage
    k = point["optimizer_bytes"] if k is None else k
    share = [n if stage >= first else 1 for first in (3, 2, 1)]
    return float(size * (wide / share[0] + wide / share[1] + k / share[2]))


def _masters_whole(point: Point) -> float:
    """4 bytes of the optimizer stay whole; nothing is whole but them at stage 3."""
    return float(_bytes(point, k=point["optimizer_bytes"] - 4) + 4 * point["num_params"])


def _near(point: Point) -> dict[str, float | str]:
    right, n, stage = _bytes(point), point["world_size"], point["stage"]
    k = point["optimizer_bytes"]
    return {
        "nothing is divided: stage 1 shards the optimizer, stage 2 gradients too, 3 all": _bytes(
            point, stage=0
        ),
        "everything is divided at every stage": _bytes(point, stage=3),
        "stages are counted from 0: stage 0 shards nothing": _bytes(point, stage=min(3, stage + 1)),
        "one stage less is sharded than asked": _bytes(point, stage=max(0, stage - 1)),
        "parameters and gradients have 4 bytes: mixed precision keeps them in 2": _bytes(point, wide=4),
        "gradients are left out": _bytes(point) - 2 * point["num_params"] / (n if stage >= 2 else 1),
        "parameters and gradients are left out: optimizer_bytes are what is needed beside them": _bytes(
            point, k=k - 4
        ),
        "the master weights are not sharded: all of optimizer_bytes are": _masters_whole(point),
        "the optimizer is left out": _bytes(point, k=0),
        "the result is in GB: give bytes": right / 1e9,
        "the bytes of all ranks are added: one rank's are asked": right * n,
        "optimizer_bytes is ignored and 12 taken": _bytes(point, k=12),
    }


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """One part a stage."""
    del want
    pairs = list(zip(case.params["points"], got[0].values["answers"], strict=True))
    formula = Formula(want=_bytes, near=_near, unit="bytes")
    return [
        judge(f"stage_{stage}", formula, [pair for pair in pairs if pair[0]["stage"] == stage], _words)
        for stage in range(4)
    ]


def _words(point: Point) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.items())
