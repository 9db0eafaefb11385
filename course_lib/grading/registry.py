"""Find exercises: one file of `labs/` each (the old form: of `verdicts/`), nothing to register."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from typing import Any, Protocol, cast

from course_lib.grading import verdicts
from course_lib.grading.core import exercise_file
from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData


class Spec(Protocol):
    """What the engine asks of an exercise: an `ExerciseFile`, or a file of `verdicts/`."""

    EXERCISE: Exercise

    def cases(self, seed: int, hidden: bool) -> list[Case]:
        """Worlds to run."""

    def inputs(self, case: Case, rank: int) -> dict[str, Array]:
        """One rank's shard."""

    def oracle(self, case: Case) -> dict[str, Any]:
        """What must come out."""

    def verdict(self, case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
        """Parts of one case."""


def ids() -> list[str]:
    """Names of all exercises."""
    old = {module.name for module in pkgutil.iter_modules(verdicts.__path__)}
    return sorted(old | set(exercise_file.found()))


def spec(exercise_id: str) -> Spec:
    """Return the file of an exercise.

    Raises: ValueError for a name that does not exist, with the nearest one.
    """
    known = ids()
    if exercise_id not in known:
        near = difflib.get_close_matches(str(exercise_id), known, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}."
        raise ValueError(f"the first argument must be the id of an exercise; got {exercise_id!r}.{guess}")
    if exercise_id in exercise_file.found():
        return cast(Spec, exercise_file.load(exercise_id))
    module = cast(Spec, importlib.import_module(f"{verdicts.__name__}.{exercise_id}"))
    if module.EXERCISE.id != exercise_id:
        raise ValueError(
            f"verdicts/{exercise_id}.py must declare id {exercise_id!r}; got {module.EXERCISE.id!r}."
        )
    return module


def program_of(exercise: Exercise) -> str:
    """Module that runs the answer inside a rank; numeric problems share one."""
    if exercise.scenario is not None:
        return exercise.scenario.rank_side
    return "course_lib.grading.numbers" if exercise.numeric else f"course_lib.grading.programs.{exercise.id}"


def get(exercise_id: str) -> Exercise:
    """Return the declaration of an exercise."""
    return spec(exercise_id).EXERCISE


def exercises(lab: str | None = None) -> list[Exercise]:
    """Return the exercises of a lab ("03" or "03_data_parallel"), or all, in order."""
    every = [get(name) for name in ids()]
    chosen = [e for e in every if lab is None or e.lab == lab or e.lab.split("_")[0] == lab]
    return sorted(chosen, key=lambda e: (e.lab, e.order, e.id))


def owner_of(symbol: str) -> Exercise | None:
    """Return the exercise that asks for `symbol`, if any does."""
    return next((e for e in exercises() if e.symbol == symbol), None)
