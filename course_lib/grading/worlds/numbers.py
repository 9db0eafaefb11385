"""Judge's half of `scenarios/numbers`: one process, nothing drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course_lib.grading.core.types import Case, Scenario
from course_lib.grading.points import no_inputs


def _one_case(chosen: Sequence[Any], seed: int) -> list[Case]:
    del chosen
    return [Case(world_size=1, seed=seed, trace=False)]


def numbers() -> Scenario:
    """A numeric problem: `PARTS = answers({name: Number(...)})`, and OPEN = HIDDEN = []."""
    return Scenario(
        rank_side="course_lib.grading.scenarios.numbers", inputs=no_inputs, cases=_one_case, numeric=True
    )
