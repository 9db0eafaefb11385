"""The commands that train, simulate and plan: what the labs teach, from a shell."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from course_lib.cli_calibrate import app as calibrate
from course_lib.cli_plan import plan
from course_lib.cli_simulate import simulate


def train(context: typer.Context) -> None:
    """Train a small model on this machine's ranks."""
    from course_lib.train.__main__ import main as run

    raise typer.Exit(code=run(context.args, "course train"))


def submit(
    context: typer.Context,
    nodes: Annotated[int, typer.Option(min=1, help="they share the layout's ranks evenly")] = 1,
    time: Annotated[str, typer.Option(help="after which Slurm ends the job; it saves before")] = "1:00:00",
    name: Annotated[str, typer.Option(help="of the job and its output")] = "course-train",
    head: Annotated[str, typer.Option(help="address where ranks meet; default: the first node")] = "",
    sbatch: Annotated[
        list[str] | None, typer.Option(help="an option of sbatch, --sbatch=--partition=gpu; may be repeated")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the script")] = False,
) -> None:
    """Train on a Slurm cluster.

    Takes the options of `course train`, too.
    """
    from course_lib.train.submit import Job, sbatch_text
    from course_lib.train.submit import submit as give

    job = Job(nodes=nodes, time=time, name=name, more=sbatch or ())
    text = sbatch_text(replace(job, head=head) if head else job, context.args)
    typer.echo(text if dry_run else give(text), nl=not dry_run)


def register(app: typer.Typer) -> None:
    """Add the commands to `course`."""
    passed_on = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    app.command(context_settings=passed_on)(train)
    app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(submit)
    app.command()(simulate)
    app.command()(plan)
    app.add_typer(calibrate, name="calibrate")
