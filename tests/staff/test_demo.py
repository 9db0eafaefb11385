"""What the demonstration says when a submission could not be graded."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from course_lib.staff import demo
from course_lib.staff.supervise import Ended


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
