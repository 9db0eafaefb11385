"""`course check LAB`: check every answer in a notebook's file, without running the notebook."""

from __future__ import annotations

import secrets
from pathlib import Path

from rich.console import Console

import course_grader as grading
from course_grader.learner import files
from course_grader.show import progress


def check_notebook(place: Path, name: str, console: Console, *, full: bool = False) -> int:
    """Check the answers in a learner's notebook; return 0 if all of them get full marks.

    full: with fresh data and the sizes of the graded cells.
    """
    notebook = files.find(place, name)
    cells = notebook.sources()
    seed = secrets.randbelow(2**31) if full else None
    verdicts = []
    for exercise in grading.exercises(notebook.lab):
        verdict = grading.check(exercise.id, cells, seed=seed, hidden=full)
        progress.note(verdict, progress.cell_that_defines(exercise.symbol, cells), notebook.path.parent)
        verdicts.append(verdict)
    points = sum(verdict.score for verdict in verdicts)
    most = sum(verdict.max_score for verdict in verdicts if not verdict.exercise.bonus)
    sizes = ", sizes of the grade" if full else ""
    console.print(f"\n{notebook.lab}: {points:g} of {most:g} points{sizes}", highlight=False)
    kept = progress.folder(notebook.path.parent)
    if kept != progress.folder(place):
        console.print(f"noted in {kept / progress.NAME}: `course progress` there shows it", soft_wrap=True)
    return int(not all(verdict.passed for verdict in verdicts if not verdict.exercise.bonus))
