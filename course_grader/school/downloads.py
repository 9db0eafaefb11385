"""`course collect LAB`: from what a learning platform lets you download to a folder per student.

Known are nbgrader's own names, and what Canvas and Moodle put into the zip of all submissions:

    ann_attempt_2026-01-15-12-00-00_03_data_parallel.ipynb           id and time
    smithann_LATE_4711_90210_03_data_parallel-1.ipynb                Canvas: the roster's lms_user_id is 4711
    Ann Smith_123_assignsubmission_file_/03_data_parallel.ipynb      Moodle: the roster's names
    Ann Smith_123_assignsubmission_file_03_data_parallel.ipynb       Moodle, without folders
"""

from __future__ import annotations

import dataclasses
import errno
import filecmp
import hashlib
import lzma
import re
import shutil
import tempfile
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from course_grader.school.submissions import MAX_NOTEBOOK_BYTES, id_problem
from course_grader.typed import one_spelling

MOST_BYTES = 10 * MAX_NOTEBOOK_BYTES  # what is too large to be read is submitted all the same
_PLAIN = re.compile(r"(?P<id>.+)_attempt_(?P<stamp>\d{4}-\d\d-\d\d-\d\d-\d\d-\d\d)_(?P<file>.+\.ipynb)")
# Students choose the rest of the name, folders included: it must not say whose file it is.
_MOODLE = re.compile(r"(.*?/)??(?P<name>[^/]+?)_\d+_assignsubmission_file_?(?P<rest>.+\.ipynb)", re.DOTALL)
_CANVAS = re.compile(r"(?P<who>[^_/]+)(?P<late>_LATE)?_(?P<lms>\d+)_(?P<order>\d+)_(?P<file>.+\.ipynb)")
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    NotImplementedError,
    RuntimeError,
    EOFError,
    UnicodeError,
)


@dataclass(frozen=True, kw_only=True)
class Person:
    """Who is in the roster."""

    id: str
    name: str = ""
    lms_id: str = ""
    email: str = ""


@dataclass(frozen=True, kw_only=True)
class Found:
    """One downloaded notebook and whose it is; the largest `order` is a student's last one."""

    path: Path
    student: str
    is_named: bool
    order: tuple[str, int]
    stamp: str = ""
    is_late: bool = False


@dataclass(frozen=True, kw_only=True)
class Sorted:
    """Where each student's notebook is, files left out and why, and what to say of whom."""

    places: dict[str, Path]
    left: dict[str, str]
    notes: list[tuple[str, str]]


def extract(archive: Path, extracted: Path) -> dict[str, str]:
    """Copy notebooks, out of zips too, to a fresh folder; return {file that is left out: why}.

    A zip within a zip is a student's: it is not opened.
    """
    shutil.rmtree(extracted, ignore_errors=True)
    extracted.mkdir(parents=True)
    left: dict[str, str] = {}
    for path in sorted(archive.rglob("*")):
        name = path.relative_to(archive)
        if path.suffix == ".zip":
            left |= _unzip(path, extracted / name.with_suffix(""))
        elif path.suffix == ".ipynb" and path.is_file() and not path.is_symlink():
            (extracted / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, extracted / name)
        elif not path.is_dir():
            left[name.as_posix()] = "it is neither a notebook nor a zip: ask for the .ipynb"
    return left


def _unzip(path: Path, folder: Path) -> dict[str, str]:
    left: dict[str, str] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if why := _extracted(archive, info, folder):
                    left[f"{path.name}: {info.filename}"] = why
    except (*_DAMAGED, OSError) as error:
        _must_not_be_full(error)
        left[path.name] = f"it must be a whole zip without a password; got {error}"
    return left


def _must_not_be_full(error: Exception) -> None:
    """Raise it if it is a full disk's: nobody's file is to blame."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise error


def _extracted(archive: zipfile.ZipFile, info: zipfile.ZipInfo, folder: Path) -> str:
    """Copy one file out of a zip; return why not, "" if it was."""
    if not info.filename.endswith(".ipynb"):
        return "" if info.is_dir() else "it is not a notebook: ask for the .ipynb"
    if info.file_size > MOST_BYTES:
        return f"it has {info.file_size:,} bytes: ask for it with its outputs cleared"
    try:
        with tempfile.TemporaryDirectory(dir=folder) as part:  # whole, or not at all
            whole = Path(archive.extract(info, part))  # names like ../x and /x stay inside `part`
            place = folder / whole.relative_to(part)
            place.parent.mkdir(parents=True, exist_ok=True)
            whole.replace(place)
    except (*_DAMAGED, OSError) as error:
        _must_not_be_full(error)
        return f"it must be a whole file with a name for one; got {error}"
    return ""


def sort(folder: Path, submitted: Path, lab: str, people: list[Person]) -> Sorted:
    """Copy each student's last notebook in `folder`/extracted to where it is graded, whole or not at all.

    Another notebook that was there goes to `folder`/replaced.
    """
    extracted = folder / "extracted"
    # Else these are just who submitted before.
    has_list = any(p.name or p.lms_id or p.email for p in people)
    known = {
        "id": {p.id: p.id for p in people if has_list},
        "name": _unique({p.id: _plain(p.name) for p in people if p.name}),
        "lms": _unique({p.id: p.lms_id for p in people if p.lms_id}),
        "letters": _unique({p.id: _letters(p.name) for p in people if p.name}),
    }
    chosen: dict[str, Found] = {}
    dropped: list[tuple[str, str]] = []
    left: dict[str, str] = {}
    for path in sorted(extracted.rglob("*.ipynb")):
        name = path.relative_to(extracted).as_posix()
        found = _whose(path, name, lab, known)
        if isinstance(found, str):
            left[name] = found
            continue
        other = chosen.setdefault(found.student, found)
        last = max((found, other), key=lambda one: (one.is_named, one.order))
        chosen[found.student] = last
        if other is not found:
            names = [one.path.name for one in (last, other if last is found else found)]
            dropped.append((found.student, f"submitted {names[0]!r}, which counts, and {names[1]!r}"))
    places = {student: submitted / student / lab / f"{lab}.ipynb" for student in sorted(chosen)}
    notes = dropped + [
        (student, note)
        for student, path in places.items()
        for note in _place(chosen[student], path, folder / "replaced" / student)
    ]
    return Sorted(places=places, left=left, notes=notes)


def _place(found: Found, path: Path, replaced: Path) -> Iterator[str]:
    """Put a notebook where it is graded; say what its owner's instructor should know."""
    path.parent.mkdir(parents=True, exist_ok=True)
    stamp, is_new = path.parent / "timestamp.txt", True
    if path.is_file():
        is_new = not filecmp.cmp(found.path, path, shallow=False)
        if is_new:
            replaced.mkdir(parents=True, exist_ok=True)
            with path.open("rb") as file:
                kept = replaced / f"{hashlib.file_digest(file, 'sha256').hexdigest()[:8]}.ipynb"
            shutil.copyfile(path, kept)
            yield f"takes the place of another notebook, which is kept as {kept.parent.name}/{kept.name}"
    if is_new:
        part = path.with_suffix(".part")
        shutil.copyfile(found.path, part)
        part.replace(path)
    if found.stamp:
        stamp.write_text(found.stamp, encoding="utf-8")
    elif is_new and stamp.exists():
        yield "has a timestamp.txt, which was another notebook's: look at it"
    elif found.is_late and not stamp.exists():
        yield "was late, the platform says: put a timestamp.txt beside the notebook"


def _whose(path: Path, name: str, lab: str, known: Mapping[str, Mapping[str, str]]) -> Found | str:
    if path.is_symlink() or not path.is_file():
        return "it must be a file; it is a link"
    if match := _MOODLE.fullmatch(name):
        student = known["name"].get(_plain(match["name"]))
        if student is None:
            return f"the roster must have one student called {match['name']!r}"
        return _found(path, student, match["rest"].rpartition("/")[2], lab, ("", 0))
    plain, canvas = _PLAIN.fullmatch(path.name), _CANVAS.fullmatch(path.name)
    # Behind Canvas's numbers stands the name that the student gave the file: it may look like nbgrader's.
    if plain and not (canvas and canvas["lms"] in known["lms"] and plain["id"] not in known["id"]):
        return _by_id(path, plain, lab, known)
    if canvas:
        return _by_number(path, canvas, lab, known)
    return "its name must be as Canvas, Moodle or nbgrader write it"


def _by_id(path: Path, match: re.Match[str], lab: str, known: Mapping[str, Mapping[str, str]]) -> Found | str:
    student = one_spelling(match["id"])
    if known["id"] and student not in known["id"]:
        return f"the roster must have a student with the id {student!r}"
    day, clock = match["stamp"][:10], match["stamp"][11:].replace("-", ":")
    return _found(path, student, match["file"], lab, (match["stamp"], 0), f"{day} {clock} UTC")


def _by_number(
    path: Path, match: re.Match[str], lab: str, known: Mapping[str, Mapping[str, str]]
) -> Found | str:
    student = known["lms"].get(match["lms"])
    if student is None:
        return f"the roster must have a student with lms_user_id {match['lms']}"
    other = known["letters"].get(_letters(match["who"]), student)
    if other != student:
        return (
            f"Canvas calls its owner {match['who']!r}, who is {other} in the roster, where lms_user_id "
            f"{match['lms']} is {student}'s: fix the roster"
        )
    found = _found(path, student, match["file"], lab, ("", int(match["order"])))
    is_late = match.start("late") >= 0
    return found if isinstance(found, str) else dataclasses.replace(found, is_late=is_late)


def _found(
    path: Path, student: str, file: str, lab: str, order: tuple[str, int], stamp: str = ""
) -> Found | str:
    if why := id_problem(student):
        return f"{why}. Choose another one in the class list"
    named = bool(re.fullmatch(rf"{re.escape(lab)}(-\d+| \(\d+\))?\.ipynb", file))
    return Found(path=path, student=student, is_named=named, order=order, stamp=stamp)


def _plain(name: str) -> str:
    return " ".join(one_spelling(name).casefold().split())


def _letters(name: str) -> str:
    """Return a name's letters in the alphabet's order: Canvas joins last and first name without a space."""
    plain = unicodedata.normalize("NFKD", name).casefold()
    return "".join(sorted(letter for letter in plain if letter.isalnum()))


def _unique(names: Mapping[str, str]) -> dict[str, str]:
    """Return {name: student}, without names that two students share."""
    values = list(names.values())
    return {name: student for student, name in names.items() if values.count(name) == 1}
