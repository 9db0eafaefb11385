"""Grading a class in lab 03: `course autograde`, sandboxed and judged outside, against `nbgrader autograde`.

The same files each time, the whole notebook run for each page in both. COURSE_CLASS in the environment is the
number of submissions, 100 by default; half of them left one exercise as a stub.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from rich.console import Console

from course_lib.staff import autograde, build, handed_in
from course_lib.staff.gradebook import Course, find_alembic
from course_lib.staff.ledger import LEDGER, Ledger
from course_lib.staff.submissions import answers_of, filled_in

Row = tuple[str, float, str, str]

LAB, EXERCISE = "03_data_parallel", "naive_ddp"
ROOT = Path(__file__).resolve().parents[1]
STUDENTS = int(os.environ.get("COURSE_CLASS", "100"))
QUIET = Console(quiet=True)
HANGING = "class NaiveDDP:\n    def __init__(self, *args, **kwargs):\n        while True:\n            pass\n"


def course(folder: Path) -> dict[str, str]:
    """Release the lab in `folder` and hand in a class; return the answers of the reference."""
    (folder / "solutions" / LAB).mkdir(parents=True)
    (folder / "pyproject.toml").touch()
    for name in (f"{LAB}.py", f"{LAB}/{LAB}.ipynb"):
        shutil.copy(ROOT / "solutions" / name, folder / "solutions" / name)
    shutil.copy(ROOT / "nbgrader_config.py", folder)
    release = Course(folder).release(LAB).read_text(encoding="utf-8")
    right = answers_of(nbformat.read(build.find_lab(folder, LAB).solution, as_version=4))
    half = {name: text for name, text in right.items() if name != EXERCISE}
    for number in range(STUDENTS):
        hand_in(folder, f"student{number:03d}", filled_in(release, half if number % 2 else right))
    return right


def hand_in(folder: Path, student: str, text: str) -> None:
    """Put a notebook where submissions are."""
    path = folder / handed_in.SUBMITTED / student / LAB / f"{LAB}.ipynb"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")


def stock_s(folder: Path) -> float:
    """Grade with nbgrader's own command; return its seconds."""
    find_alembic()
    command = [sys.executable, "-m", "nbgrader", "autograde", LAB]
    start = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return time.perf_counter() - start


def ours_s(folder: Path, jobs: int) -> float:
    """Grade with the course's command, which ends with all in the gradebook; return its seconds."""
    start = time.perf_counter()
    assert autograde.command(folder, LAB, QUIET, jobs=jobs) == 0
    return time.perf_counter() - start


def hanging_s(folder: Path, right: dict[str, str]) -> float:
    """Return how many seconds a submission takes that hangs in one exercise, beyond one that does not."""
    known = [entry.seconds for entry in Ledger(folder / LEDGER).entries(LAB)]
    release = (folder / "notebooks" / LAB / f"{LAB}.ipynb").read_text(encoding="utf-8")
    hand_in(folder, "hanging", filled_in(release, right | {EXERCISE: HANGING}))
    assert autograde.command(folder, LAB, QUIET) == 0
    entry = Ledger(folder / LEDGER).entry(LAB, "hanging")
    assert entry is not None
    assert entry.verdicts[EXERCISE]["score"] == 0
    return entry.seconds - statistics.median(known)


def rows() -> list[Row]:
    """Give (name, value, unit, note)."""
    with tempfile.TemporaryDirectory(prefix="course_bench_") as name:
        first = Path(name) / "first"
        right = course(first)
        folders = [shutil.copytree(first, Path(name) / text) for text in ("stock", "two")]
        one_s, stock, two_s = ours_s(first, 1), stock_s(folders[0]), ours_s(folders[1], 2)
        more_s = hanging_s(first, right)
    note = f"{STUDENTS} submissions"
    return [
        ("nbgrader autograde", stock / STUDENTS, "s", f"a submission, of {note}"),
        ("course autograde --jobs 1", one_s / STUDENTS, "s", f"a submission, of {note}"),
        ("nbgrader / course --jobs 1", stock / one_s, "x", "goal: at least 1"),
        ("course autograde --jobs 2", two_s / STUDENTS, "s", f"a submission, of {note}"),
        ("nbgrader / course --jobs 2", stock / two_s, "x", "goal: at least 1.5"),
        ("course --jobs 1 / --jobs 2", one_s / two_s, "x", "one submission's ranks use both cores, too"),
        ("one that hangs costs", more_s, "s", "goal: at most 15"),
    ]
