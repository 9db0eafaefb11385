"""Carry a learner's work from one release of a lab to another, by the ids of cells.

Answers go to the cell of the same exercise, wherever it stands now; a stub that nobody touched does not,
since the new stub may say more. Cells that the learner added stay behind the same neighbour. What has no
place any more comes to the end. Edited cells of the course itself are not carried: the old file is kept.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from course_grader.learner.files import Cell, grade_id, is_answer, is_edited, is_own, source_of

HEADING_ID = "course-from-before"
HEADING = "## From your earlier notebook\n\nThis release of the lab has no place for the cells below."


@dataclass
class Carried:
    """A release with a learner's work in it.

    Attributes:
        data: the notebook's JSON object.
        answers: exercises whose answer was carried.
        own: how many added cells were.
        homeless: exercises that this release does not have; their answers stand at the end.
    """

    data: dict[str, Any]
    answers: list[str] = field(default_factory=list)
    own: int = 0
    homeless: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """Return one line about what was carried."""
        gone = f"; no longer asked, at the end: {', '.join(self.homeless)}" if self.homeless else ""
        return f"{len(self.answers)} answers and {self.own} cells of your own carried over{gone}"


def merge(old: list[Cell], release: dict[str, Any]) -> Carried:
    """Return `release` with the work found in the cells `old`; neither is changed."""
    result = Carried(copy.deepcopy(release))
    cells: list[Cell] = result.data["cells"]
    slots = {grade_id(cell["metadata"]): cell for cell in cells if is_answer(cell)}
    ids = {cell["id"] for cell in cells if "id" in cell}
    behind: dict[str, list[Cell]] = {}  # id of a released cell, "" for the top -> the learner's after it
    end: list[Cell] = []
    anchor = ""
    for cell in old:
        name = grade_id(cell["metadata"])
        if is_own(cell):
            behind.setdefault(anchor, []).append(copy.deepcopy(cell))
            result.own += 1
        elif is_answer(cell) and is_edited(cell):
            if name in slots:
                slots[name]["source"] = cell["source"]
                result.answers.append(name)
            else:
                end.append(_plain(cell))
                result.homeless.append(name)
        if cell.get("id") in ids:
            anchor = cell["id"]
    result.data["cells"] = [*_fresh(behind.get("", []), ids), *_woven(cells, behind, ids), *_ended(end)]
    return result


def _woven(cells: list[Cell], behind: dict[str, list[Cell]], ids: set[str]) -> list[Cell]:
    return [one for cell in cells for one in (cell, *_fresh(behind.get(cell.get("id", ""), []), ids))]


def _fresh(cells: list[Cell], ids: set[str]) -> list[Cell]:
    """Return the learner's cells; one whose id the release uses loses it."""
    for cell in cells:
        if cell.get("id") in ids:
            cell["id"] = f"own-{cell['id']}"[:64]
    return cells


def _plain(cell: Cell) -> Cell:
    """Return an answer as an ordinary cell: nbgrader does not know it any more."""
    name = f"before-{grade_id(cell['metadata'])}"[:64]
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": {},
        "outputs": [],
        "source": source_of(cell),
    }


def _ended(end: list[Cell]) -> list[Cell]:
    heading = {"cell_type": "markdown", "id": HEADING_ID, "metadata": {}, "source": HEADING}
    return [heading, *end] if end else []
