"""The commands that train, simulate and plan: what the labs teach, from a shell."""

from __future__ import annotations

import typer

from course_lib.cli_plan import plan
from course_lib.cli_simulate import simulate


def train(context: typer.Context) -> None:
    """Train a small model on this machine's ranks (--help: all options)."""
    from course_lib.train.__main__ import main as run

    raise typer.Exit(code=run(context.args))


def register(app: typer.Typer) -> None:
    """Add the commands to `course`."""
    passed_on = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(context_settings=passed_on)(train)
    app.command()(simulate)
    app.command()(plan)
