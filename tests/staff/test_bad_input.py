"""What goes wrong around a grading run: a message, a non-zero exit, nothing lost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console
from small_class import LAB, contents, gradebook_scores, hand_in_class, small_course

from course_lib.staff import autograde
from course_lib.staff.ledger import LEDGER, Ledger

COMMAND = [sys.executable, "-m", "course_lib.cli", "autograde", LAB, "--no-run"]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    root = tmp_path_factory.mktemp("course")
    small_course(root)
    return root, hand_in_class(root, 2)


def run(root: Path, *before: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200", **variables}
    return subprocess.run(
        [*before, *COMMAND], cwd=root, capture_output=True, text=True, check=False, env=environment
    )


def gradebook(root: Path) -> Path:
    return root / "grading" / "gradebook.db"


def test_without_bubblewrap_nobody_is_graded(course: tuple[Path, dict[str, float]]) -> None:
    root, _ = course
    result = run(root, PATH="/nowhere")
    assert result.returncode == 1
    assert "course: students' code must run in a sandbox" in result.stderr
    assert "apt-get install bubblewrap" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (root / LEDGER).exists()


def test_a_gradebook_of_another_nbgrader_is_left_alone(course: tuple[Path, dict[str, float]]) -> None:
    root, _ = course
    with sqlite3.connect(gradebook(root)) as connection:
        known = connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]
        connection.execute("UPDATE alembic_version SET version_num = 'f00d'")
    connection.close()
    before = gradebook(root).read_bytes()
    with pytest.raises(ValueError, match=r"got\s+revision f00d. Back it up"):
        autograde.command(root, LAB, Console(quiet=True))
    assert gradebook(root).read_bytes() == before
    with sqlite3.connect(gradebook(root)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (known,))
    connection.close()


def test_a_damaged_gradebook_is_one_message(course: tuple[Path, dict[str, float]]) -> None:
    root, _ = course
    before = gradebook(root).read_bytes()
    gradebook(root).write_bytes(b"no database" * 1000)
    with pytest.raises(ValueError, match="must be a database of nbgrader's"):
        autograde.command(root, LAB, Console(quiet=True))
    gradebook(root).write_bytes(before)


def test_a_full_disk_then_a_locked_gradebook_and_all_are_graded(
    course: tuple[Path, dict[str, float]],
) -> None:
    root, wanted = course
    before = contents(root)
    result = run(root, "prlimit", "--fsize=40000:unlimited")  # as if no block behind that were free
    assert result.returncode == 1, result.stdout + result.stderr
    assert "course: there must be space for the ledger" in result.stderr
    assert "Traceback" not in result.stderr
    entered = [entry.student for entry in Ledger(root / LEDGER).entries(LAB) if entry.recorded]
    scores = gradebook_scores(root)
    assert {student: scores[student] for student in entered} == {s: wanted[s] for s in entered}
    assert len(entered) < len(wanted)

    lock = sqlite3.connect(gradebook(root), check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    timer = threading.Timer(8.0, lock.rollback)
    timer.start()
    try:
        assert autograde.command(root, LAB, Console(quiet=True), show=False) == 0
    finally:
        timer.join()
        lock.close()
    assert gradebook_scores(root) == wanted
    assert contents(root) == before
