"""What the commands of `course` share: the app, its arguments, what they print."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from course_lib.cli_needs import checkout

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Students use the commands from doctor to restore, instructors from release to address, "
    "authors from build to style. Those from train to calibrate need no lab.",
)
console = Console()

OptionalLab = Annotated[str | None, typer.Argument(metavar="[LAB]", help='name or number of a lab, "03"')]
Lab = Annotated[str, typer.Argument(metavar="LAB", help='name or number of a lab, "03"')]
Database = Annotated[
    str | None, typer.Option("--db", metavar="URL", help="gradebook; else as grading/gradebook.url says")
]


def place() -> Path:
    """Return the learner's folder: the checkout, or where notebooks lie alone."""
    from course_grader.show import progress

    return checkout_or_none() or progress.folder()


def checkout_or_none() -> Path | None:
    try:
        return checkout()
    except ValueError:
        return None


def say(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def script(path: str, *arguments: str) -> None:
    raise typer.Exit(code=subprocess.call([sys.executable, path, *arguments], cwd=checkout()))


def steps(steps: list[list[str]]) -> None:
    """Run every step, then exit with 1 if one failed: a reader wants all complaints at once."""
    codes = [subprocess.call([sys.executable, *step], cwd=checkout()) for step in steps]
    raise typer.Exit(code=int(any(codes)))
