"""`course roster FILE`: the class list into nbgrader's gradebook, whole or not at all."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from course_lib.staff import record
from course_lib.staff.gradebook import in_words
from course_lib.staff.submissions import id_problem, one_spelling

COLUMNS = ("id", "first_name", "last_name", "email", "lms_user_id")
_UNIQUE = ("id", "email", "lms_user_id")


def command(root: Path, path: Path, console: Console, db_url: str | None = None) -> int:
    """Enter the students of a CSV file; who is in the gradebook already is brought up to date."""
    students = read(path)
    record.check_version(root, db_url)
    with in_words(), record.gradebook_api(root, db_url).gradebook as gradebook:
        known = {student.id: student for student in gradebook.students}
        if problems := list(_taken(students, known)):
            said = "\n  ".join(problems)
            raise ValueError(
                f"{path.name} must give nobody what another student has; nothing was entered:\n  {said}\n"
                "If that is the same person, keep the old id; or, before there are grades, "
                "`nbgrader db student remove OLD`"
            )
        for student in students:
            rest = {name: value or None for name, value in student.items() if name != "id"}
            gradebook.update_or_create_student(student["id"], **rest)
    new = sum(student["id"] not in known for student in students)
    console.print(f"{len(students)} students in the gradebook, {new} of them new", highlight=False)
    return 0


def read(path: Path) -> list[dict[str, str]]:
    """Return the students of a CSV file with some of COLUMNS, `id` among them.

    Raises: ValueError that names every line that must be mended; FileNotFoundError.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there must be a class list; got no file at {path}")
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, restkey="", restval="")
        columns = list(reader.fieldnames or [])
        if "id" not in columns or not set(columns) <= set(COLUMNS):
            raise ValueError(
                f"the first line of {path.name} must name columns among {', '.join(COLUMNS)}, with `id`; "
                f"got {', '.join(columns) or 'nothing'}. Rename or remove columns"
            )
        rows = [(reader.line_num, row) for row in reader]
    students = [{name: one_spelling(str(row[name]).strip()) for name in columns} for _, row in rows]
    problems = list(_problems([number for number, _ in rows], students))
    if problems or not students:
        said = "\n  ".join(problems) or "it has no students"
        raise ValueError(f"{path.name} must list each student once; nothing was entered:\n  {said}")
    return students


def _taken(students: list[dict[str, str]], known: Mapping[str, Any]) -> Iterator[str]:
    """Say what belongs to somebody in the gradebook whom the list does not name."""
    listed = {student["id"] for student in students}
    for column in _UNIQUE[1:]:
        others = {
            value.casefold(): name
            for name, person in known.items()
            if name not in listed and (value := getattr(person, column))
        }
        for student in students:
            if other := others.get(student.get(column, "").casefold()):
                yield f"{student['id']}: {column} {student[column]!r} is {other}'s"


def _problems(numbers: list[int], students: list[dict[str, str]]) -> Iterator[str]:
    for number, student in zip(numbers, students, strict=True):
        if why := id_problem(student["id"]):
            yield f"line {number}: {why}"
    for column in _UNIQUE:
        values = [student.get(column, "").casefold() for student in students]
        for value, count in Counter(values).items():
            if value and count > 1:
                lines = [str(n) for n, other in zip(numbers, values, strict=True) if other == value]
                yield f"lines {', '.join(lines)}: {column} {value!r} is there {count} times"
