"""Judge's half of `inside/scenarios/numbers`: one process, nothing drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from course_grader.parts.points import no_inputs
from course_grader.types import Case, Scenario


def _one_case(chosen: Sequence[Any], seed: int) -> list[Case]:
    del chosen
    return [Case(world_size=1, seed=seed, trace=False)]


def numbers() -> Scenario:
    """A numeric problem: `PARTS = answers({name: Number(...)})`, and OPEN = HIDDEN = []."""
    return Scenario(
        rank_side="course_grader.inside.scenarios.numbers:program",
        inputs=no_inputs,
        cases=_one_case,
        numeric=True,
    )
