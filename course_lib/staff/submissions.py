"""What students handed in: found, read and never changed; grading works on copies.

A copy holds every marked cell of the release exactly once, with the release's metadata, and whatever else the
student wrote: deleted cells come back, copied ones lose their mark, changed ids and metadata are put right.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import re
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import reader

from course_lib.staff.demonstrations import TAG, is_demonstration
from course_lib.staff.filled_release import storable
from course_lib.staff.pictures import SIZED, too_large

SUBMITTED = Path("grading") / "submitted"
PICTURES = ("image/png", "image/jpeg", "image/svg+xml")  # of a cell's attachments; a page shows them as <img>
MAX_NOTEBOOK_BYTES = 100_000_000
MAX_VALUES = 2_000_000  # numbers, texts, lists and objects in it: each costs some 200 bytes when it is read
MAX_CELLS = 2_000  # each is checked several times, by nbgrader where no limit on time holds
MAX_PICTURE = 2_000_000  # characters
MAX_ID_BYTES = 100  # of a student's id: names of files are made of it
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
_NO_NAME = re.compile(r"^\s|\s$|[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # nbgrader would take another


class TooMuch(ValueError):
    """A notebook that would take more memory or time to read than any honest one."""


class TooOld(ValueError):
    """A notebook as Jupyter wrote it before 2015."""


@dataclass(frozen=True)
class Submission:
    """One student's folder for one lab; `notebook` is None if nothing in it can be it.

    Attributes:
        student: the folder's name in one spelling, as Python writes it if a gradebook cannot hold it.
        note: what is odd about it, in a sentence.
        timestamp: when it was handed in, if that is known.
    """

    student: str
    folder: Path
    notebook: Path | None
    note: str = ""
    timestamp: str | None = None

    @property
    def has_name(self) -> bool:
        """A gradebook can hold the folder's name."""
        return self.student == one_spelling(self.folder.parent.name)

    def digest(self) -> str:
        """Return a digest of the notebook."""
        path = self.notebook
        if path is None or path.is_symlink() or not path.is_file():
            return hashlib.sha256().hexdigest()
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def find(root: Path, lab: str) -> list[Submission]:
    """Return every submission of `lab` below `root`, by student."""
    folder = root / SUBMITTED
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    names = [name for name in names if (folder / name / lab).is_dir()]
    spelt = Counter(map(one_spelling, names))
    found = [_one(name, folder / name / lab, lab, spelt[one_spelling(name)] > 1) for name in names]
    return [_with_time(one) for one in found]


def one_spelling(text: str) -> str:
    """Return the one form (Unicode's NFC) of a text: macOS writes "é" as two characters."""
    return unicodedata.normalize("NFC", text)


def id_problem(student: str) -> str:
    """Return what a student's id must be, if it cannot be a folder's name everywhere; else ""."""
    if not student or student in (".", "..") or re.search(r"[/\\\0\n]", student):
        return f"an id must be a name for a folder; got {student!r}"
    if len(student.encode(errors="replace")) > MAX_ID_BYTES:
        return f"an id must have at most {MAX_ID_BYTES} bytes; got {len(student.encode())}: {student[:9]}..."
    return ""


def _one(name: str, folder: Path, lab: str, is_twice: bool) -> Submission:
    student = one_spelling(name)
    if _NO_NAME.search(student):
        why = "a folder's name must be a line of text without a space before or after it: rename the folder"
        return Submission(repr(student), folder, None, why)
    if why := id_problem(student):
        return Submission(repr(student[:20]), folder, None, f"{why}. Rename the folder")
    if is_twice and name != student:
        why = "another folder's name is the same text, in other bytes: keep one of both"
        return Submission(ascii(name), folder, None, why)
    if folder.is_symlink() or folder.parent.is_symlink():
        return Submission(student, folder, None, "its folder is a link")
    wanted = folder / f"{lab}.ipynb"
    others = sorted(path for path in folder.glob("*.ipynb") if path != wanted)
    if wanted.exists() or wanted.is_symlink():
        return Submission(student, folder, wanted)
    if len(others) == 1:
        return Submission(student, folder, others[0], f"the notebook is called {others[0].name!r}")
    found = f"{len(others)} others" if others else "no notebook"
    return Submission(student, folder, None, f"there must be a notebook {lab}.ipynb; got {found}")


def _with_time(one: Submission) -> Submission:
    from nbgrader.utils import parse_utc  # what it cannot read ends nbgrader; seconds to import

    path = one.folder / "timestamp.txt"
    if path.is_symlink() or not path.is_file():
        return one
    try:
        with path.open("rb") as file:
            text = file.read(100).decode(errors="replace").strip()
        if text:
            parse_utc(text)
        return dataclasses.replace(one, timestamp=text or None)
    except Exception:  # dateutil raises more than it says
        said = "; ".join(filter(None, (one.note, "its timestamp.txt holds no time and is ignored")))
        return dataclasses.replace(one, note=said)


def notebook_of(path: Path) -> Any:
    """Read a submitted notebook as it is.

    Raises: TooMuch, TooOld, and whatever nbformat raises on what is no notebook.
    """
    data = path.read_bytes()
    values = sum(data.count(mark) for mark in (b",", b"[", b"{"))
    if values > MAX_VALUES:
        raise TooMuch(
            f"a notebook must hold at most {MAX_VALUES / 1e6:g} million values; by its commas and brackets "
            f"it has {values / 1e6:.1f} million. Clear its outputs and hand it in again"
        )
    # Not nbformat.reads: that converts old formats, in which a heading of 60 kB can grow to gigabytes.
    notebook = reader.reads(data.decode("utf-8-sig"))
    if notebook.nbformat != 4:
        raise TooOld(
            f"a notebook must be of version 4 of the format; got {str(notebook.nbformat)[:20]}. "
            "Open it in JupyterLab, save it and hand it in again"
        )
    if len(notebook.cells) > MAX_CELLS:
        raise TooMuch(f"a notebook must have at most {MAX_CELLS:,} cells; it has {len(notebook.cells):,}")
    return notebook


def kept_release(root: Path, lab: str) -> Path:
    """Where `course release` keeps what it released: somebody may work in the one in notebooks/."""
    return root / "grading" / "released" / f"{lab}.ipynb"


def release_of(root: Path, lab: str) -> Path:
    """Return the release of a lab: as it was kept, if nbgrader has not released more cells since.

    The one in notebooks/ may be git's again, without a cell for reflections, or hold half of somebody's work.
    """
    path, kept = root / "notebooks" / lab / f"{lab}.ipynb", kept_release(root, lab)
    return path if not kept.is_file() or _marked(path) - _marked(kept) else kept


def _marked(path: Path) -> set[str]:
    try:
        return {name for cell in notebook_of(path).cells if (name := grade_id(cell))}
    except Exception:  # nbformat raises more than it says
        return set()


def restored(submitted: Any, release: Any) -> Any:
    """Return a copy of a submitted notebook with each marked cell of `release` once and in order of need."""
    result = nbformat.v4.new_notebook(metadata=copy.deepcopy(dict(release.metadata)))
    marked = {cell.metadata.nbgrader.grade_id: cell for cell in release.cells if "nbgrader" in cell.metadata}
    shown = {str(cell.source) for cell in release.cells if is_demonstration(cell)}
    seen: set[str] = set()
    cells = []
    for cell in reversed(submitted.cells):  # of copies, the last counts, as nbgrader and the judge do
        name = grade_id(cell)
        new = _clean(cell)
        if name in marked and name not in seen and cell.cell_type == marked[name].cell_type:
            seen.add(name)
            new = _like(marked[name], source=_source(cell))
        elif new.cell_type == "code" and new.source in shown:  # whatever tags the student left on it
            new.metadata.tags = [TAG]
        cells.append(new)
    result.cells = cells[::-1]
    _put_back(result, release, seen)
    for number, cell in enumerate(result.cells):
        cell["id"] = f"cell-{number}"
    return result


def _source(cell: Any) -> str:
    return storable(str(cell.get("source", "")))


def grade_id(cell: Any) -> str:
    """Return the id that nbgrader knows a cell by, "" for a student's own."""
    metadata = cell.get("metadata")
    marks = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    name = marks.get("grade_id", "") if isinstance(marks, dict) else ""
    return name if isinstance(name, str) else ""


def _clean(cell: Any) -> Any:
    if cell.cell_type == "code":
        return nbformat.v4.new_code_cell(_source(cell))
    if cell.cell_type == "markdown":
        kept, left = _pictures(cell)
        said = "".join(f"\n\n{name}: {why}" for name, why in left.items())
        return nbformat.v4.new_markdown_cell(_source(cell) + said, attachments=kept)
    return nbformat.v4.new_raw_cell(_source(cell))


def _pictures(cell: Any) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the attachments of a cell that are pictures, and why a page cannot show others of them.

    Whatever else a student put there is left.
    """
    found: dict[str, dict[str, str]] = {}
    left: dict[str, str] = {}
    attached = cell.get("attachments")
    for name, data in attached.items() if isinstance(attached, dict) else ():
        for mime, text in data.items() if isinstance(data, dict) else ():
            if mime not in PICTURES or not isinstance(text, str) or not _BASE64.fullmatch(text):
                continue
            if len(text) > MAX_PICTURE:
                size = f"{len(text) * 0.75e-6:.1f} MB; a page holds {MAX_PICTURE * 0.75e-6:.1f} MB each."
                left[storable(str(name))] = f"Not shown: a picture of {size}"
            elif mime in SIZED and (why := too_large(mime, text)):
                left[storable(str(name))] = why
            else:
                found[storable(str(name))] = {mime: text}
    return found, left


def _like(cell: Any, source: str) -> Any:
    new = copy.deepcopy(cell)
    new.source = source if not cell.metadata.nbgrader.get("locked") else cell.source
    return new


def _put_back(notebook: Any, release: Any, seen: set[str]) -> None:
    """Insert the marked cells that are missing, each behind the marked cell before it."""
    before = None
    for cell in release.cells:
        name = grade_id(cell)
        if not name:
            continue
        if name not in seen:
            places = [i for i, c in enumerate(notebook.cells) if before and grade_id(c) == before]
            notebook.cells.insert(places[0] + 1 if places else 0, copy.deepcopy(cell))
        before = name
