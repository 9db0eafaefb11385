"""Judge's half of `scenarios/sharded_training`: one process on all ranks' batches, and known mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from course_lib.grading.core.types import Case, Scenario, World
from course_lib.grading.parts.common import Window
from course_lib.grading.toys import ToyNet, trainable
from course_lib.grading.zero_oracle import SUMMED, train, zero_case, zero_inputs
from course_lib.grading.zero_toys import STATES as STATES
from course_lib.grading.zero_toys import STEPS as STEPS

CONSTRUCTION = Window("built", "constructed", "the constructor")
_MARKS = ["constructed", *(f"end {step}" for step in range(STEPS))]
STEP_WINDOWS = [Window(a, b, f"step {i}") for i, (a, b) in enumerate(pairwise(_MARKS))]
BACKWARDS = [Window(a, f"backward {i}", f"backward of step {i}") for i, a in enumerate(_MARKS[:-1])]
LOCAL_ONLY = {"local": True}
MISTAKES: dict[str, dict[str, Any]] = {
    SUMMED: {"scale": 1.0},
    "only the last backward of a step counts": {"only_last": True},
}


def case(world_size: int, optimizer: str, microbatches: int = 1, **more: Any) -> Case:
    """Ranks that train a toy with an inner optimizer (a key of `zero_toys.INNER`).

    Args:
        microbatches: backwards before each step.
        more: optional_from, and options of ToyNet.
    """
    return zero_case(world_size, 0, optimizer, microbatches, **more)


def trained(case: Case, *, scale: float | None = None, only_last: bool = False, local: bool = False) -> World:
    """Every parameter after each step.

    scale: of each rank's loss; 1/n if None. local: each rank trains on its own batches.
    """
    n = case.world_size
    shards = [{k: torch.from_numpy(v) for k, v in zero_inputs(case, r).items()} for r in range(n)]
    if local:
        alone = [train(case, [shard], 1.0) for shard in shards]
        return {name: [own[name] for own in alone] for name in alone[0]}
    found = train(case, shards, 1 / n if scale is None else scale, only_last=only_last)
    return {name: [value] * n for name, value in found.items()}


def sharded_training() -> Scenario:
    """impl(params, make_optimizer): an optimizer around a toy that is trained three steps."""
    return Scenario(
        rank_side="course_lib.grading.scenarios.sharded_training", inputs=zero_inputs, returned=_returned
    )


def _returned(case: Case) -> Sequence[tuple[str, str]]:
    del case
    ends = [(f"end {step}", f"step {step} ends") for step in range(STEPS)]
    return [("constructed", "the constructor returns"), *ends]


def sizes(case: Case) -> list[int]:
    """Elements of each parameter that trains, tied ones once."""
    return [p.numel() for p in trainable(ToyNet(**case.params["model"]))]
