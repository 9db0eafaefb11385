"""A learner's notebook files: find them, read them, replace them whole, keep a copy.

A notebook is its JSON object. Names of cells are those the course's build gives (`staff/source.py`).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_grader.answer.source import holds_code
from course_grader.registry import exercises
from course_grader.show.progress import free_name, write_whole

Cell = dict[str, Any]
KEPT = "course-kept"
_COURSE_CELL = re.compile(r"cell-\d{3}|(card|hints|check|course)-.*")


@dataclass(frozen=True)
class NotebookFile:
    """One notebook on disk, read as a lab's."""

    path: Path
    lab: str
    data: dict[str, Any]

    @property
    def cells(self) -> list[Cell]:
        """The cells, in order."""
        return self.data["cells"]  # type: ignore[no-any-return]

    def sources(self) -> list[str]:
        """Return the texts of the cells that are judged, in order."""
        return [source_of(cell) for cell in self.cells if holds_code(cell)]


def lab_name(name: str) -> str:
    """Return the full name of a lab called "3", "03" or "03_data_parallel".

    Raises: ValueError with the known ones.
    """
    known = sorted({exercise.lab for exercise in exercises()})
    found = [lab for lab in known if lab == name or lab.split("_")[0] == name.zfill(2)]
    if len(found) != 1:
        home = next((e.lab for e in exercises() if name in (e.id, e.symbol)), None)
        advice = f"{name} is an exercise of {home}: name that." if home else "Name one of them."
        raise ValueError(f"a lab must be one of {', '.join(known)}; got {name!r}. {advice}")
    return found[0]


def find(place: Path, name: str) -> NotebookFile:
    """Return a learner's notebook by its path, or by its lab's name or number.

    place: the course's folder; a lab's notebook is in notebooks/LAB/, in LAB/ or in the folder itself.

    Raises: FileNotFoundError that names what lies there instead; ValueError for what is not a lab's notebook.
    """
    if name.endswith(".ipynb"):
        path = Path(name)
        if not path.exists():
            raise FileNotFoundError(f"there must be a notebook at {path}; got none. Correct the path.")
        return read(path)
    lab = lab_name(name)
    places = [place / "notebooks" / lab, place / lab, place]
    for folder in places:
        if (folder / f"{lab}.ipynb").exists():
            return read(folder / f"{lab}.ipynb", lab)
    others = [path for folder in places for path in sorted(folder.glob("*.ipynb"))]
    renamed = next((path for path in others if lab in _labs_of(path)), None)
    advice = f"Was it renamed? `course check {renamed}` checks it" if renamed else "Name its path"
    raise FileNotFoundError(
        f"there must be a notebook {lab}.ipynb in {' or '.join(map(str, places))}; got none. {advice}."
    )


def read(path: Path, lab: str = "") -> NotebookFile:
    """Read a notebook file; its lab is that of its exercises.

    Raises: ValueError for a file that is no notebook, or none of the course's.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        kinds = [(cell["cell_type"], source_of(cell), cell["metadata"]) for cell in data["cells"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must be a notebook; it cannot be read ({type(error).__name__}: {error}). "
            "Take the last copy from course-kept/, or the released one."
        ) from error
    found = {exercise.lab for exercise in exercises() if exercise.id in {grade_id(m) for _, _, m in kinds}}
    if lab:
        return NotebookFile(path, lab, data)
    if len(found) != 1:
        raise ValueError(
            f"{path} must be a notebook of one lab; it has exercises of "
            f"{', '.join(sorted(found)) or 'none'}. Name another file."
        )
    return NotebookFile(path, found.pop(), data)


def _labs_of(path: Path) -> set[str]:
    try:
        return {read(path).lab}
    except (ValueError, OSError):
        return set()


def grade_id(metadata: dict[str, Any]) -> str:
    """Return nbgrader's name of a cell from its metadata, "" for a cell without."""
    return str(metadata.get("nbgrader", {}).get("grade_id", ""))


def source_of(cell: Cell) -> str:
    """Return a cell's text, which a file holds as one string or as lines."""
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def lines_of(text: str) -> list[str]:
    """Return a text as notebook files hold it."""
    return text.splitlines(keepends=True)


def is_answer(cell: Cell) -> bool:
    """Whether an exercise asks to fill this cell."""
    nbgrader = cell["metadata"].get("nbgrader", {})
    return bool(nbgrader.get("solution")) and not nbgrader.get("grade")


def is_edited(cell: Cell) -> bool:
    """Whether an answer cell differs from the stub it was released as, by nbgrader's checksum in it."""
    checksum = cell["metadata"]["nbgrader"].get("checksum")
    flags = "FalseTrueFalse"  # graded, solution, locked: an answer cell's
    text = source_of(cell) + str(cell["cell_type"]) + flags + grade_id(cell["metadata"])
    return bool(checksum != hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())


def is_own(cell: Cell) -> bool:
    """Whether the learner added this cell."""
    return not cell["metadata"].get("nbgrader") and not _COURSE_CELL.fullmatch(str(cell.get("id", "")))


def write(notebook: NotebookFile, place: Path) -> Path:
    """Replace the file of `notebook`, after keeping a copy of what was there; return the copy.

    Raises: ValueError where nothing can be written; the notebook is then as it was.
    """
    try:
        copy = keep(notebook.path, place)
        write_whole(notebook.path, json.dumps(notebook.data, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ValueError(
            f"{notebook.path} and {place / KEPT} must be writable; got {error.strerror or error}. "
            "Nothing was changed: copy the notebook to a folder of your own and work there."
        ) from error
    return copy


def keep(path: Path, place: Path) -> Path:
    """Copy a file into course-kept/ under a name with the time; return the copy."""
    folder = place / KEPT
    folder.mkdir(exist_ok=True)
    now = datetime.datetime.now().strftime("%Y-%m-%d-%H%M%S")
    copy = free_name(folder / f"{path.stem}-{now}{path.suffix}")
    shutil.copy2(path, copy)
    return copy
