"""`course`: what students, instructors and authors do, also for a Python without make.

Each command imports what it needs when it runs: `course --help` and `course doctor` answer where half of
the course is missing. A module here holds the commands of one kind of reader, in the order of `--help`.
"""

from __future__ import annotations

from rich.console import Console

from course_grader.cli import learner, school, upkeep
from course_grader.cli.shared import app
from course_lib.cli_scale import register

__all__ = ["app", "learner", "main", "school", "upkeep"]

register(app)


def main() -> None:
    """Run one command; a wrong input is one message and a non-zero exit, not a traceback."""
    try:
        app()
    except (ValueError, OSError, ModuleNotFoundError) as error:
        Console(stderr=True).print(f"course: {error}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(1) from error
