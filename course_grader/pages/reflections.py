"""Reflections that count, if `class.toml` gives them points: an answer cell behind a lab's questions.

A release for self-study holds the rubric beside the questions. In one that is submitted there is a cell to
write into instead, graded by hand in nbgrader's formgrader, and the rubric goes to grading/rubrics/.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
from nbgrader.preprocessors import NbGraderPreprocessor

from course_grader import class_file

GRADE_ID = "reflections"
_SECTION = re.compile(r"^## Reflect\b.*?(?=^## |\Z)", re.S | re.M)
_FOLDED = re.compile(r"<details><summary>Rubric</summary>(.*?)</details>", re.S)
_INLINE = re.compile(r"\s*\((Good: .*?)\)[ \t]*(?=\n\s*\d+\. |\s*\Z)", re.S)


class AskForReflections(NbGraderPreprocessor):  # type: ignore[misc]
    """nbgrader's step from source to release that puts the cell there."""

    def preprocess(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        root, lab = Path.cwd(), resources["nbgrader"]["notebook"]  # nbgrader works in the course's folder
        points = class_file.reflections(root)
        for place, cell in enumerate(nb.cells):
            section = _SECTION.search(cell.source) if cell.cell_type == "markdown" else None
            if points and section:
                questions, rubric = split(section[0])
                if not rubric:
                    raise ValueError(
                        f"the reflections of {lab} must have a rubric; got none below `## Reflect`"
                    )
                folder = root / "grading" / "rubrics"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{lab}.md").write_text(f"# {lab}: {points:g} points\n\n{rubric}\n", "utf-8")
                rest = cell.source[section.end() :].strip()
                cell.source = cell.source[: section.start()] + questions
                after = [nbformat.v4.new_markdown_cell(rest, id="after-reflections")] if rest else []
                nb.cells[place + 1 : place + 1] = [answer_cell(points), *after]
                break
        return nb, resources


def split(text: str) -> tuple[str, str]:
    """Return the questions of a section without their rubric, and the rubric."""
    rubric = [match.strip() for match in [*_FOLDED.findall(text), *_INLINE.findall(text)]]
    lines = _INLINE.sub("", _FOLDED.sub("", text)).strip().splitlines()
    return "\n".join(["## Reflect", *lines[1:]]), "\n\n".join(rubric)


def answer_cell(points: float) -> Any:
    """Return the cell a student writes into, as nbgrader marks those that people grade."""
    marks = {
        "grade": True,
        "solution": True,
        "locked": False,
        "task": False,
        "schema_version": 3,
        "grade_id": GRADE_ID,
        "points": points,
    }
    return nbformat.v4.new_markdown_cell(
        "Your answers, by number:\n\n1. ...\n2. ...", metadata={"nbgrader": marks}, id=GRADE_ID
    )
