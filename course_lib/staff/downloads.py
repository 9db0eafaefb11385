"""`course collect LAB`: from what a learning platform lets you download to a folder a student.

Known are nbgrader's own names, and what Canvas and Moodle put into the zip of all submissions:

    ann_attempt_2026-01-15-12-00-00_03_data_parallel.ipynb           id and time
    smithann_LATE_4711_90210_03_data_parallel-1.ipynb                Canvas: the roster's lms_user_id is 4711
    Ann Smith_123_assignsubmission_file_/03_data_parallel.ipynb      Moodle: the roster's names
    Ann Smith_123_assignsubmission_file_03_data_parallel.ipynb       Moodle, without folders
"""

from __future__ import annotations

import filecmp
import re
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from course_lib.staff.handed_in import MAX_NOTEBOOK_BYTES

_PLAIN = re.compile(r"(?P<id>.+)_attempt_(?P<stamp>\d{4}-\d\d-\d\d(-\d\d-\d\d-\d\d)?)_(?P<file>.+\.ipynb)")
_MOODLE = re.compile(r"(?P<name>[^/]+)_\d+_assignsubmission_file_?/?(?P<file>[^/]+\.ipynb)")
_CANVAS = re.compile(r"[^_/]+(_LATE)?_(?P<lms>\d+)_(?P<order>\d+)_(?P<file>.+\.ipynb)")


@dataclass(frozen=True, kw_only=True)
class Person:
    """Who is in the roster."""

    id: str
    name: str = ""
    lms_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Found:
    """One downloaded notebook and whose it is; the largest `order` is a student's last one."""

    path: Path
    student: str
    is_named: bool
    order: tuple[str, int]
    stamp: str = ""


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
            left[name.as_posix()] = "it is neither a notebook nor a zip"
    return left


def _unzip(path: Path, folder: Path) -> dict[str, str]:
    left: dict[str, str] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.filename.endswith(".ipynb"):
                    if not info.is_dir():
                        left[f"{path.name}: {info.filename}"] = "it is not a notebook"
                elif info.file_size > MAX_NOTEBOOK_BYTES:
                    left[f"{path.name}: {info.filename}"] = f"it has {info.file_size:,} bytes"
                else:
                    archive.extract(info, folder)  # names like ../x and /x stay inside `folder`
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        left[path.name] = f"it must be a whole zip without a password; got {error}"
    return left


def sort(
    extracted: Path, submitted: Path, lab: str, people: list[Person]
) -> tuple[dict[str, Path], dict[str, str], list[str]]:
    """Copy each student's last notebook to where it is graded, whole or not at all.

    Returns ({student: file}, {file that is left out: why}, students whose notebook was another before).
    """
    has_list = any(p.name or p.lms_id for p in people)  # else these are just who handed in before
    known = {
        "id": {p.id: p.id for p in people if has_list},
        "name": _unique({p.id: _plain(p.name) for p in people if p.name}),
        "lms": {p.lms_id: p.id for p in people if p.lms_id},
    }
    chosen: dict[str, Found] = {}
    left: dict[str, str] = {}
    for path in sorted(extracted.rglob("*.ipynb")):
        name = path.relative_to(extracted).as_posix()
        found = _whose(path, name, lab, known)
        if isinstance(found, str):
            left[name] = found
            continue
        other = chosen.get(found.student)
        if other is None or (found.is_named, found.order) >= (other.is_named, other.order):
            chosen[found.student] = found
    places = {student: submitted / student / lab / f"{lab}.ipynb" for student in sorted(chosen)}
    replaced = [student for student, path in places.items() if _place(chosen[student], path)]
    return places, left, replaced


def _place(found: Found, path: Path) -> bool:
    """Put a notebook where it is graded; return whether another one was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    was_there = path.is_file()
    if was_there and filecmp.cmp(found.path, path, shallow=False):
        was_there = False
    else:
        part = path.with_suffix(".part")
        shutil.copyfile(found.path, part)
        part.replace(path)
    if found.stamp:
        (path.parent / "timestamp.txt").write_text(found.stamp, encoding="utf-8")
    return was_there


def _whose(path: Path, name: str, lab: str, known: Mapping[str, Mapping[str, str]]) -> Found | str:
    if path.is_symlink() or not path.is_file():
        return "it must be a file; it is a link"
    tail = "/".join(Path(name).parts[-2:])
    if match := _PLAIN.fullmatch(path.name):
        if known["id"] and match["id"] not in known["id"]:
            return f"the roster must have a student with the id {match['id']!r}"
        day, clock = match["stamp"][:10], match["stamp"][11:].replace("-", ":") or "00:00:00"
        return _found(path, match["id"], match["file"], lab, (match["stamp"], 0), f"{day} {clock} UTC")
    if match := _MOODLE.fullmatch(tail) or _MOODLE.fullmatch(path.name):
        student = known["name"].get(_plain(match["name"]))
        if student is None:
            return f"the roster must have one student called {match['name']!r}"
        return _found(path, student, match["file"], lab, ("", 0))
    if match := _CANVAS.fullmatch(path.name):
        student = known["lms"].get(match["lms"])
        if student is None:
            return f"the roster must have a student with lms_user_id {match['lms']}"
        return _found(path, student, match["file"], lab, ("", int(match["order"])))
    return "its name must be as Canvas, Moodle or nbgrader write it"


def _found(
    path: Path, student: str, file: str, lab: str, order: tuple[str, int], stamp: str = ""
) -> Found | str:
    if student in (".", "..") or "/" in student:
        return f"a student's id must be a name for a folder; got {student!r}"
    named = bool(re.fullmatch(rf"{re.escape(lab)}(-\d+| \(\d+\))?\.ipynb", file))
    return Found(path=path, student=student, is_named=named, order=order, stamp=stamp)


def _plain(name: str) -> str:
    return " ".join(name.casefold().split())


def _unique(names: Mapping[str, str]) -> dict[str, str]:
    """Return {name: student}, without names that two students share."""
    values = list(names.values())
    return {name: student for student, name in names.items() if values.count(name) == 1}
