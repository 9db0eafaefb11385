"""The head of a feedback page: what the points are of, what was lost and why, with a link to the cell."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import nbformat
from nbgrader.preprocessors import NbGraderPreprocessor

from course_grader.authoring.filled_release import VERDICT
from course_grader.pages.reflections import GRADE_ID
from course_grader.registry import exercises
from course_grader.show.text import line
from course_grader.why import Why

MAX_REASON = 600  # characters; the whole report is in the cell
NO_RESPONSE = "No response."  # nbgrader's own comment on an answer that is still the stub


class OwnMaximum(NbGraderPreprocessor):  # type: ignore[misc]
    """Count a page's points as the tables do: the maximum is the lab's, what a bonus gives comes on top."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        """Change the maximum that nbgrader has read; name bonus and reflections; drop its empty comments."""
        marks = [cell.metadata["nbgrader"] for cell in nb.cells if "nbgrader" in cell.metadata]
        for mark in marks:
            if mark.get("comment") == NO_RESPONSE:
                mark["comment"] = ""
        bonus = {f"test_{e.id}" for e in exercises() if e.bonus}
        lines, graded = [], [mark for mark in marks if mark.get("grade") and "points" in mark]
        for name, on_top in (("bonus exercises", True), ("reflections", False)):
            ids = bonus if on_top else {GRADE_ID}
            some = [mark for mark in graded if mark["grade_id"] in ids]
            points, most = (sum(float(mark[key]) for mark in some) for key in ("score", "points"))
            if on_top:
                resources["nbgrader"]["max_score"] -= most
            end = ", on top of the maximum" if on_top else ", graded by hand"
            lines += [f"Of the points, {name} gave {points:g} of {most:g}{end}."] if some else []
        if lines:
            nb.cells.insert(0, nbformat.v4.new_markdown_cell(" ".join(lines)))
        return nb, resources


class WhatWasLost(NbGraderPreprocessor):  # type: ignore[misc]
    """Put a cell above the graded notebook that names every lost part; where none was, says so."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        """Read the verdicts that the judge left in the graded cells; a student cannot write there."""
        verdicts = list(_verdicts(nb))
        if verdicts:
            nb.cells.insert(0, nbformat.v4.new_markdown_cell(_text(verdicts)))
        return nb, resources


def _verdicts(nb: Any) -> Iterator[dict[str, Any]]:
    for cell in nb.cells:
        if cell.cell_type == "code" and cell.metadata.get("nbgrader", {}).get("grade"):
            for output in cell.get("outputs", []):
                verdict = output.get("data", {}).get(VERDICT)
                if verdict:
                    yield verdict


def _text(verdicts: list[dict[str, Any]]) -> str:
    lost = [verdict for verdict in verdicts if not verdict["passed"]]
    if not lost:
        return "## Nothing was lost\n\nEvery part of every exercise holds."
    return "\n\n".join(["## What was lost, and why", *map(_exercise, lost)])


def _exercise(verdict: dict[str, Any]) -> str:
    name = verdict["exercise"]
    head = f"**[{name}](#test_{name})**: {verdict['score']:g} of {verdict['max_score']:g} points"
    if verdict["gate"]:
        return f"{head}\n\n{_quoted(verdict['gate'], verdict)}"
    rows = [
        _quoted(f"{part} {result['points']:g}/{result['max_points']:g}", result)
        for part, result in verdict["parts"].items()
        if not result["ok"]
    ]
    return "\n\n".join([head, *rows])


def _quoted(what: str, plain: dict[str, Any]) -> str:
    """A reason may hold an answer's words: it is shown as text, never rendered."""
    text = f"{what}: {line(Why.of_plain(plain))}"
    text = text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]} ..."
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"
