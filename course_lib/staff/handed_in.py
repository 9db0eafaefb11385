"""What students handed in: found, read and never changed; grading works on copies.

A copy holds every marked cell of the release exactly once, with the release's metadata, and whatever else the
student wrote: deleted cells come back, copied ones lose their mark, changed ids and metadata are put right.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

SUBMITTED = Path("grading") / "submitted"
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")  # of a cell's attachments; a page shows them as <img>
MAX_NOTEBOOK_BYTES = 100_000_000
MAX_PICTURE = 2_000_000  # characters


@dataclass(frozen=True)
class HandedIn:
    """One student's folder for one lab; `notebook` is None if nothing in it can be it."""

    student: str
    folder: Path
    notebook: Path | None
    note: str = ""

    def digest(self) -> str:
        """Return a digest of the notebook and of when it was handed in."""
        total = hashlib.sha256()
        for path in (self.notebook, self.folder / "timestamp.txt"):
            if path is not None and path.is_file() and not path.is_symlink():
                total.update(path.name.encode(errors="replace"))
                with path.open("rb") as file:
                    while data := file.read(1 << 20):
                        total.update(data)
        return total.hexdigest()


def find(root: Path, lab: str) -> list[HandedIn]:
    """Return every submission of `lab` below `root`, by student."""
    folder = root / SUBMITTED
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    return [_one(name, folder / name / lab, lab) for name in names if (folder / name / lab).is_dir()]


def _one(student: str, folder: Path, lab: str) -> HandedIn:
    if folder.is_symlink() or folder.parent.is_symlink():
        return HandedIn(student, folder, None, "its folder is a link")
    wanted = folder / f"{lab}.ipynb"
    others = sorted(path for path in folder.glob("*.ipynb") if path != wanted)
    if wanted.exists() or wanted.is_symlink():
        return HandedIn(student, folder, wanted)
    if len(others) == 1:
        return HandedIn(student, folder, others[0], f"the notebook is called {others[0].name}")
    found = f"{len(others)} others" if others else "no notebook"
    return HandedIn(student, folder, None, f"there must be a notebook {lab}.ipynb; got {found}")


def notebook_of(path: Path) -> Any:
    """Read a submitted notebook; what nbformat mends in it (copied ids, say) is no news to an instructor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nbformat.reads(path.read_text(encoding="utf-8-sig"), as_version=4)


def restored(submitted: Any, release: Any) -> Any:
    """Return a copy of a submitted notebook with each marked cell of `release` once and in order of need."""
    result = nbformat.v4.new_notebook(metadata=copy.deepcopy(dict(release.metadata)))
    marked = {cell.metadata.nbgrader.grade_id: cell for cell in release.cells if "nbgrader" in cell.metadata}
    seen: set[str] = set()
    cells = []
    for cell in reversed(submitted.cells):  # of copies, the last counts, as nbgrader and the judge do
        name = _grade_id(cell)
        new = _clean(cell)
        if name in marked and name not in seen and cell.cell_type == marked[name].cell_type:
            seen.add(name)
            new = _like(marked[name], source=str(cell.source))
        cells.append(new)
    result.cells = cells[::-1]
    _put_back(result, release, seen)
    for number, cell in enumerate(result.cells):
        cell["id"] = f"cell-{number}"
    return result


def _grade_id(cell: Any) -> str:
    marks = cell.metadata.get("nbgrader", {})
    name = marks.get("grade_id", "") if isinstance(marks, dict) else ""
    return name if isinstance(name, str) else ""


def _clean(cell: Any) -> Any:
    if cell.cell_type == "code":
        return nbformat.v4.new_code_cell(str(cell.source))
    if cell.cell_type == "markdown":
        return nbformat.v4.new_markdown_cell(str(cell.source), attachments=_pictures(cell))
    return nbformat.v4.new_raw_cell(str(cell.source))


def _pictures(cell: Any) -> dict[str, dict[str, str]]:
    """Return the attachments of a cell that are pictures; whatever else a student put there is left."""
    found: dict[str, dict[str, str]] = {}
    attached = cell.get("attachments")
    for name, data in attached.items() if isinstance(attached, dict) else ():
        for mime, text in data.items() if isinstance(data, dict) else ():
            if mime in PICTURES and isinstance(text, str) and len(text) <= MAX_PICTURE:
                found[str(name)] = {mime: text}
    return found


def _like(cell: Any, source: str) -> Any:
    new = copy.deepcopy(cell)
    new.source = source if not cell.metadata.nbgrader.get("locked") else cell.source
    return new


def _put_back(notebook: Any, release: Any, seen: set[str]) -> None:
    """Insert the marked cells that are missing, each behind the marked cell before it."""
    before = None
    for cell in release.cells:
        name = _grade_id(cell)
        if not name:
            continue
        if name not in seen:
            places = [i for i, c in enumerate(notebook.cells) if before and _grade_id(c) == before]
            notebook.cells.insert(places[0] + 1 if places else 0, copy.deepcopy(cell))
        before = name
