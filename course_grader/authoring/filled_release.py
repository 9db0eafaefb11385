"""Submissions made from a release: the same notebook, the answer cells filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import nbformat

from course_grader.show.text import line
from course_grader.why import Why

VERDICT = "application/vnd.course.verdict+json"


def filled_in(release: str, answers: Mapping[str, str]) -> str:
    """Return a release notebook with the text of each answer in its cell.

    Raises
        ValueError if the release has no cell for an answer.
    """
    notebook = nbformat.reads(release, as_version=4)
    cells = answer_cells(notebook)
    unknown = sorted(set(answers) - set(cells))
    if unknown:
        raise ValueError(
            f"each answer must have a cell in the release; got {unknown}, it has {sorted(cells)}"
        )
    for exercise, text in answers.items():
        cells[exercise].source = text
    return str(nbformat.writes(notebook)) + "\n"


def storable(text: str) -> str:
    """Return `text` without what no file or database can hold: halves of a character, and NUL."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "?")


def printable(text: str) -> str:
    """Return `text` without what a terminal would obey."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", storable(text))


def answer_cells(notebook: nbformat.NotebookNode) -> dict[str, Any]:
    """Return {exercise: its answer cell}."""
    marked = [cell for cell in notebook.cells if "nbgrader" in cell.metadata]
    return {cell.metadata.nbgrader.grade_id: cell for cell in marked if cell.metadata.nbgrader.solution}


def answers_of(notebook: nbformat.NotebookNode) -> dict[str, str]:
    """Return {exercise: the text of its answer cell}."""
    return {exercise: str(cell.source) for exercise, cell in answer_cells(notebook).items()}


@dataclass(frozen=True, kw_only=True)
class GradedCell:
    """What one locked cell of a run notebook says.

    Attributes
        exercise: id of the exercise.
        verdict: the plain data of `grading.score`, None if the cell never got that far.
        errors: text of every error and of stderr, which nbgrader turns into 0 points.
    """

    exercise: str
    verdict: dict[str, Any] | None
    errors: tuple[str, ...]

    def parts(self) -> dict[str, tuple[float, float]]:
        """Return {part: (points, maximum)}; empty if there is no verdict."""
        parts = self.verdict["parts"] if self.verdict else {}
        return {name: (float(part["points"]), float(part["max_points"])) for name, part in parts.items()}

    def lost(self) -> frozenset[tuple[str, str]]:
        """Return the (exercise, part) pairs that got less than their maximum."""
        return frozenset(
            (self.exercise, name) for name, (points, most) in self.parts().items() if points < most
        )

    def message(self) -> str:
        """Return what the student reads about the first thing that is wrong."""
        if self.verdict is None:
            return "; ".join(self.errors) or "the cell printed no verdict"
        failed = [part for part in self.verdict["parts"].values() if not part["ok"]]
        first = self.verdict if self.verdict["gate"] or not failed else failed[0]
        return line(Why.of_plain(first))


def graded_cells(notebook: nbformat.NotebookNode) -> dict[str, GradedCell]:
    """Return {exercise: what its locked cell says} of a notebook that was run."""
    graded = [cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade")]
    return {cell.exercise: cell for cell in map(_read, graded)}


def _read(cell: Any) -> GradedCell:
    verdicts = [output.data[VERDICT] for output in cell.outputs if VERDICT in output.get("data", {})]
    errors = [f"{output.ename}: {output.evalue}" for output in cell.outputs if output.output_type == "error"]
    noise = [
        output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stderr"
    ]
    exercise = cell.metadata.nbgrader.grade_id.removeprefix("test_")
    return GradedCell(exercise=exercise, verdict=verdicts[-1] if verdicts else None, errors=(*errors, *noise))
