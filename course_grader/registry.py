"""Find exercises: one file of `labs/` each, nothing to register."""

from __future__ import annotations

import difflib

from course_grader.exercise import Exercise
from course_grader.judge import exercise_file
from course_grader.judge.exercise_file import ExerciseFile


def ids() -> list[str]:
    """Names of all exercises."""
    return sorted(exercise_file.found())


def spec(exercise_id: str) -> ExerciseFile:
    """Return the file of an exercise.

    Raises: ValueError for a name that does not exist, with the nearest one.
    """
    known = ids()
    if exercise_id not in known:
        near = difflib.get_close_matches(str(exercise_id), known, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else f" Known: {', '.join(known)}."
        raise ValueError(f"the first argument must be the id of an exercise; got {exercise_id!r}.{guess}")
    return exercise_file.load(exercise_id)


def program_of(exercise: Exercise) -> str:
    """What runs the answer inside a rank, "module:function"."""
    assert exercise.scenario is not None, "an exercise file has a scenario"
    return exercise.scenario.rank_side


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
