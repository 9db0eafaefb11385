"""`course`: what students, instructors and authors do, also for a Python without make.

Each command imports what it needs when it runs: `course --help` and `course doctor` answer where half of
the course is missing.
"""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from course_lib.cli_needs import checkout, need, need_staff
from course_lib.cli_scale import register

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Students: doctor to restore. Instructors: release to address.",
)
console = Console()

OptionalLab = Annotated[str | None, typer.Argument(metavar="[LAB]", help='name or number of a lab, "03"')]


def main() -> None:
    """Run one command; a wrong input is one message and a non-zero exit, not a traceback."""
    try:
        app()
    except (ValueError, OSError, ModuleNotFoundError) as error:
        Console(stderr=True).print(f"course: {error}", markup=False, highlight=False, soft_wrap=True)
        raise SystemExit(1) from error


@app.command()
def doctor(
    world: Annotated[bool, typer.Option(help="start two ranks and let them talk")] = True,
    programs: Annotated[bool, typer.Option("--programs", help="only what pip cannot install")] = False,
) -> None:
    """Say what this machine lacks, and what to do about it."""
    from course_lib import doctor as examination

    findings = [] if programs else [*examination.examine(world=world), *_ranks_alone(examination)]
    last = examination.missing_programs() if programs else examination.how_to_get(examination.PROGRAMS)
    for line in filter(None, [*(finding.line() for finding in findings), last]):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code=examination.exit_code(findings))


def _ranks_alone(examination: types.ModuleType) -> Iterator[Any]:
    """Say whether students' ranks can be kept from one another where they are graded."""
    if examination.PROGRAMS["bubblewrap"].problem:
        return
    from course_grader.judge import bubblewrap, sandbox

    try:
        lacks = sandbox.require(trust=False)
    except bubblewrap.SandboxMissing as error:
        lacks = str(error)
    yield examination.Finding(not lacks, "ranks alone", lacks or "namespaces for each rank", necessary=False)


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
    raise typer.Exit(code=jupyter.command(_checkout_or_none(), lab or "", passed_on))


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

    raise typer.Exit(code=answers.check_notebook(_place(), lab, console, full=full))


@app.command()
def progress(lab: OptionalLab = None) -> None:
    """Show labs and exercises with your last verdicts."""
    from course_grader.show.progress_table import progress_map

    for line in progress_map(lab and lab.zfill(2), _place()).lines():
        _say(line)


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

    _say(keep.reset(_place(), exercise, notebook, release))


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

    for line in keep.update(_place(), lab, release):
        _say(line)


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

    _say(keep.save(_place(), target))


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="what `course save` wrote, or its folder")],
) -> None:
    """Bring back what was saved into the notebooks here."""
    from course_grader.learner import keep

    for line in keep.restore(_place(), source):
        _say(line)


@app.command()
def build(
    lab: OptionalLab = None,
    check: Annotated[bool, typer.Option("--check", help="compare only; run and write nothing")] = False,
    keep_outputs: Annotated[
        bool, typer.Option("--keep-outputs", help="only the course's own cells changed: run only the first")
    ] = False,
) -> None:
    """Make the notebooks of LAB, or of all labs.

    Their source is solutions/NN_topic.py.
    """
    need("jupytext", "staff")
    from course_grader.school import build as builder

    raise typer.Exit(code=builder.command(checkout(), lab, check, console, keep_outputs))


@app.command()
def zoo(
    lab: Annotated[str | None, typer.Option(help='name or number of a lab, "03"')] = None,
    exercise: Annotated[list[str] | None, typer.Option(help="one exercise alone; may be repeated")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="how many times in a row")] = 1,
    sandbox: Annotated[bool, typer.Option("--sandbox", help="judge as `course autograde` does")] = False,
) -> None:
    """Check every known right and wrong answer.

    A false accept or reject is a failure.
    """
    need("jupytext", "staff")
    from course_grader.zoo import judge_answers as answers

    number = lab.zfill(2) if lab and lab.isdigit() else lab
    raise typer.Exit(code=answers.command(checkout(), number, repeat, console, exercise, sandbox))


@app.command()
def demo() -> None:
    """Autograde four submissions of lab 03; print their scores."""
    need_staff()
    from course_grader import demo as demonstration

    raise typer.Exit(code=demonstration.command(checkout(), console))


Lab = Annotated[str, typer.Argument(metavar="LAB", help='name or number of a lab, "03"')]
Database = Annotated[
    str | None, typer.Option("--db", metavar="URL", help="gradebook; else as grading/gradebook.url says")
]


@app.command()
def release(lab: Lab, db: Database = None) -> None:
    """Make the student notebook of LAB; tell the gradebook."""
    need_staff()
    from course_grader.school import classwork

    raise typer.Exit(code=classwork.release(checkout(), lab, console, db))


@app.command()
def roster(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV: id, first_name, last_name, email, lms_user_id")
    ],
    db: Database = None,
) -> None:
    """Enter a class list into the gradebook, whole or not at all."""
    need_staff()
    from course_grader.school import roster as people

    raise typer.Exit(code=people.command(checkout(), file, console, db))


@app.command()
def collect(lab: Lab, db: Database = None) -> None:
    """Sort grading/downloaded/LAB/archive/ by student."""
    need_staff()
    from course_grader.school import classwork

    raise typer.Exit(code=classwork.collect(checkout(), lab, console, db))


@app.command()
def autograde(
    lab: Lab,
    jobs: Annotated[int, typer.Option(min=1, help="submissions at a time, without --dask")] = 1,
    trust_students: Annotated[
        bool, typer.Option("--trust-students", help="run their code with your rights, without a sandbox")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="also judge what was graded before")] = False,
    regrade: Annotated[
        str, typer.Option(metavar="EXERCISE", help="judge only this one again, in what was graded before")
    ] = "",
    run: Annotated[bool, typer.Option(help="run notebooks, for the output on feedback pages")] = True,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Dask scheduler whose workers judge")
    ] = None,
    db: Database = None,
) -> None:
    """Judge every submission of LAB in a sandbox.

    After an interruption run it again: it goes on.
    """
    need_staff()
    from course_grader.school import autograde as grader

    if dask is not None:
        need("distributed", "staff")
    judge = partial(grader.command, checkout(), lab, console, jobs=jobs, dask=dask, trust=trust_students)
    raise typer.Exit(code=judge(show=run, db_url=db, again=again, only=regrade))


@app.command()
def feedback(lab: Lab, db: Database = None) -> None:
    """Write a page for each submission to grading/feedback/."""
    need_staff()
    from course_grader.school import classwork

    raise typer.Exit(code=classwork.feedback(checkout(), lab, console, db))


@app.command()
def report(lab: Lab, db: Database = None) -> None:
    """Write tables to grading/reports/LAB/; say what was hard."""
    need_staff()
    from course_grader.school import reports

    raise typer.Exit(code=reports.command(checkout(), lab, console, db))


@app.command()
def grades(db: Database = None) -> None:
    """Write grading/reports/grades.csv, as class.toml weighs labs."""
    need_staff()
    from course_grader.school import final

    raise typer.Exit(code=final.command(checkout(), console, db))


@app.command("export-class")
def export_class(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="a new folder for the students' repository")
    ],
) -> None:
    """Make a repository for students, without solutions.

    Nor does it hold tests, the zoo, and sizes that only the grade uses.
    """
    need_staff()
    from course_grader.school import export

    raise typer.Exit(code=export.command(checkout(), folder, console))


@app.command()
def address(
    url: Annotated[
        str, typer.Argument(metavar="[URL]", help="https://github.com/OWNER/NAME; asked for if left out")
    ] = "",
) -> None:
    """Say where this course is published; badges and links follow."""
    need_staff()
    from course_grader.school import address as published

    wanted = url or typer.prompt("Where is this course published? https://github.com/OWNER/NAME")
    published.write(checkout(), wanted)
    # In a new process: this one has read the old address.
    _steps([["-m", "course_grader.cli", "build", "--keep-outputs"]])


@app.command(context_settings={"ignore_unknown_options": True})
def bench(
    names: Annotated[list[str] | None, typer.Argument(help="of benchmarks/bench_*.py; none: all")] = None,
) -> None:
    """Measure the course's ratios.

    `course bench accuracy --tables FOLDER` says how far predictions are off.
    """
    name = "accuracy" if names and names[0] == "accuracy" else "run"
    _script(f"benchmarks/{name}.py", *(names or [])[name == "accuracy" :])


register(app)


@app.command("test")
def run_tests(
    arguments: Annotated[list[str] | None, typer.Argument(help="passed on to pytest, after --")] = None,
) -> None:
    """Run the tests."""
    need("pytest", "course")
    _steps([["-m", "pytest", *(arguments or [])]])


@app.command()
def style() -> None:
    """Run ruff, format, types, import contracts, build --check."""
    need("mypy", "dev")
    _steps(
        [
            ["-m", "ruff", "check", "."],
            ["-m", "ruff", "format", "--check", "."],
            ["-m", "mypy"],
            ["-c", "from importlinter.cli import lint_imports_command as run; run()"],
            ["-m", "course_grader.cli", "build", "--check"],
        ]
    )


def _place() -> Path:
    """Return the learner's folder: the checkout, or where notebooks lie alone."""
    from course_grader.show import progress

    return _checkout_or_none() or progress.folder()


def _checkout_or_none() -> Path | None:
    try:
        return checkout()
    except ValueError:
        return None


def _say(line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _script(path: str, *arguments: str) -> None:
    raise typer.Exit(code=subprocess.call([sys.executable, path, *arguments], cwd=checkout()))


def _steps(steps: list[list[str]]) -> None:
    """Run every step, then exit with 1 if one failed: a reader wants all complaints at once."""
    codes = [subprocess.call([sys.executable, *step], cwd=checkout()) for step in steps]
    raise typer.Exit(code=int(any(codes)))


if __name__ == "__main__":
    main()
