"""Commands of students: what this machine lacks, a lab, its checks, a copy of the work."""

from __future__ import annotations

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from course_grader.cli.shared import OptionalLab, app, checkout_or_none, console, place, say
from course_lib.cli_needs import need


@app.command()
def doctor(
    world: Annotated[bool, typer.Option(help="start two ranks and let them talk")] = True,
    programs: Annotated[bool, typer.Option("--programs", help="only what pip cannot install")] = False,
) -> None:
    """Say what this machine lacks, and what to do about it."""
    from course_lib import doctor as examination

    findings = [] if programs else [*examination.examine(world=world), *_sandbox(examination)]
    last = examination.missing_programs() if programs else examination.how_to_get(examination.PROGRAMS)
    for line in filter(None, [*(finding.line() for finding in findings), last]):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code=examination.exit_code(findings))


def _sandbox(examination: types.ModuleType) -> Iterator[Any]:
    """Say whether students' code can be graded in a sandbox here."""
    if examination.PROGRAMS["bubblewrap"].problem:
        return
    from course_grader.judge import bubblewrap, sandbox

    problem = ""
    try:
        sandbox.require(trust=False)
    except bubblewrap.SandboxMissing as error:
        problem = str(error)
    yield examination.Finding(not problem, "sandbox", problem or "starts", necessary=False)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def lab(context: typer.Context, lab: OptionalLab = None) -> None:
    """Open JupyterLab on LAB, or on all labs.

    Without a checkout, the labs are first laid out in ./notebooks. Options of
    `jupyter lab` are passed on.
    """
    need("jupyterlab", "course")
    from course_grader.learner import jupyter

    passed_on = list(context.args)
    if lab is not None and lab.startswith("-"):
        passed_on, lab = [lab, *passed_on], None
    raise typer.Exit(code=jupyter.command(checkout_or_none(), lab or "", passed_on))


AnyLab = Annotated[
    str, typer.Argument(metavar="LAB", help='name or number of a lab, "03", or the path of its notebook')
]
Release = Annotated[
    Path | None, typer.Option("--release", metavar="FILE", help="the released notebook, where git has none")
]


@app.command()
def check(
    lab: AnyLab,
    full: Annotated[bool, typer.Option("--full", help="fresh data and the sizes of the grade")] = False,
) -> None:
    """Check every answer in your notebook of LAB."""
    from course_grader.learner import answers

    raise typer.Exit(code=answers.check_notebook(place(), lab, console, full=full))


@app.command()
def progress(lab: OptionalLab = None) -> None:
    """Show labs and exercises with your last verdicts."""
    from course_grader.show.progress_table import progress_map

    for line in progress_map(lab and lab.zfill(2), place()).lines():
        say(line)


@app.command()
def reset(
    exercise: Annotated[str, typer.Argument(metavar="EXERCISE", help="as in its check cell, naive_ddp")],
    notebook: Annotated[str | None, typer.Option(help="path of the notebook, if it was renamed")] = None,
    release: Release = None,
) -> None:
    """Make one answer what it was at first.

    A copy of yours is kept.
    """
    from course_grader.learner import keep

    say(keep.reset(place(), exercise, notebook, release))


@app.command()
def update(
    lab: Annotated[
        str,
        typer.Argument(metavar="[LAB]", help="which lab FILE is of; git brings the whole course up to date"),
    ] = "",
    release: Release = None,
) -> None:
    """Take the newest release and carry your answers over.

    A copy of your notebooks is kept.
    """
    from course_grader.learner import keep

    for line in keep.update(place(), lab, release):
        say(line)


@app.command()
def save(
    target: Annotated[
        Path, typer.Argument(metavar="FILE", help="a file, or a folder such as a mounted drive")
    ],
) -> None:
    """Save your verdicts and notebooks to one file.

    A machine such as Colab's is wiped: put the file elsewhere.
    """
    from course_grader.learner import keep

    say(keep.save(place(), target))


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="what `course save` wrote, or its folder")],
) -> None:
    """Bring back what was saved into the notebooks here."""
    from course_grader.learner import keep

    for line in keep.restore(place(), source):
        say(line)
