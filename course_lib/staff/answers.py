"""`course check LAB`: check every answer in a notebook's file, without running the notebook."""

from __future__ import annotations

from pathlib import Path

import nbformat
from rich.console import Console

from course_lib import grading
from course_lib.staff.build import find_lab


def check_notebook(root: Path, name: str, console: Console) -> int:
    """Check the answers in notebooks/`name`; return 0 if all of them get full marks."""
    lab = find_lab(root, name)
    if not lab.release.exists():
        raise FileNotFoundError(
            f"there must be a notebook to check; got none at {lab.release}. run `course build {lab.name}`"
        )
    notebook = nbformat.reads(lab.release.read_text(encoding="utf-8"), as_version=4)
    cells = [str(cell.source) for cell in notebook.cells if cell.cell_type == "code"]
    verdicts = [grading.check(exercise.id, cells) for exercise in grading.exercises(lab.name)]
    points = sum(verdict.score for verdict in verdicts)
    most = sum(verdict.max_score for verdict in verdicts if not verdict.exercise.bonus)
    console.print(f"\n{lab.name}: {points:g} of {most:g} points", highlight=False)
    return int(not all(verdict.passed for verdict in verdicts if not verdict.exercise.bonus))
