"""The card above an exercise: the task, its signature, one sentence a part; the rest lies below a fold."""

from __future__ import annotations

from course_grader.exercise import Exercise
from course_grader.forbids import words_of


def card(exercise: Exercise) -> str:
    """Return the markdown above an exercise, from its declaration."""
    bonus = ", bonus" if exercise.bonus else ""
    facts = (
        f"{exercise.minutes} min",
        f"about {exercise.lines} line{'s' * (exercise.lines != 1)}",
        f"difficulty {_stars(exercise.difficulty)}",
        f"importance {_stars(exercise.importance)}",
        f"{exercise.max_score:g} point{'s' * (exercise.max_score != 1)}{bonus}",
    )
    head = f"### Exercise {exercise.order}: {exercise.title} (`{exercise.id}`)"
    lines = [head, " · ".join(facts), _task(exercise)]
    if not exercise.numeric:
        lines.append(_parts(exercise))
    return "\n\n".join([*lines, *_fold(exercise), f"Hints: `grading.hint({exercise.id!r})`."])


def _task(exercise: Exercise) -> str:
    if exercise.numeric or not exercise.signature:
        return exercise.task
    return f"`{exercise.symbol}{exercise.signature}`: {exercise.task}"


def _parts(exercise: Exercise) -> str:
    rows = (f"| {name} | {points:g} | {exercise.graded[name]} |" for name, points in exercise.points.items())
    return "\n".join(["| part | points | awarded if |", "|---|---|---|", *rows])


def _fold(exercise: Exercise) -> list[str]:
    """Exact bounds, hidden sizes and what is closed, in plain words."""
    texts = [exercise.details] if exercise.details else []
    if exercise.forbids:
        texts.append(f"**Closed while this is checked**: {words_of(exercise.forbids)}.")
    if not texts:
        return []
    body = "\n\n".join(texts)
    return [f"<details><summary>Exact bounds, sizes, what is closed</summary>\n\n{body}\n\n</details>"]


def _stars(count: int) -> str:
    return "★" * count + "☆" * (5 - count)
