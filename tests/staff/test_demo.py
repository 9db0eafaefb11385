"""What the demonstration says when a submission could not be graded."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from course_grader import demo
from course_grader.school.gradebook import Course
from course_grader.school.supervise import Ended


def test_a_submission_without_a_result_is_named_and_the_table_still_printed() -> None:
    why = "it was ended by signal 9. hangs.log ends with\n  Killed"
    graded = [
        demo.graded(
            Path("nowhere"), demo.LAB, submission, Ended(name=submission.student, seconds=7.0, why=why)
        )
        for submission in demo.SUBMISSIONS
    ]
    console = Console(file=io.StringIO(), width=100)
    demo.report(graded, Path("nowhere"), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.split()}
    assert rows["total"] == ["none"] * len(graded)
    assert rows["seconds"] == ["7"] * len(graded)
    assert graded[3].problems() == [f"hangs was not graded: {why}"]


def test_a_step_that_failed_ends_with_why_and_not_with_where_to_look() -> None:
    why = "NotebookStopped: the kernel of hangs must start; twice it did not: Kernel died"
    log = (
        "[ERROR] There was an error processing assignment: submitted/hangs/03\n"
        f"[ERROR] Traceback (most recent call last):\n    course_grader.kernels.{why}\n    \n"
        "[WARNING] Removing failed assignment: autograded/hangs/03\n"
        "[ERROR] There was an error processing assignment '03' for student 'hangs'\n"
        "[ERROR] Please see the the above traceback for details on the specific errors.\n"
    )
    with pytest.raises(ValueError, match="autograding hangs must succeed") as raised:
        Course._must({"success": False, "error": "Please see", "log": log}, "autograding hangs")
    assert str(raised.value).splitlines()[-1].endswith(why)
