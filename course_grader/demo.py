"""`course demo`: four submissions of lab 03, from hand-in to feedback, and whether each got what it deserves.

The four are made from the release notebook by filling in answers of the zoo: a correct one, one whose DDP
never overlaps communication with backward, one that sums gradients instead of averaging them, and one that
hangs on one rank. They go through nbgrader as a class's would: released, collected, autograded, fed back.
The gradebook's scores are compared with what each answer must lose; a difference is a failure of the
demonstration.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

import course_grader as grading
from course_grader.authoring.filled_release import GradedCell, answers_of, filled_in, graded_cells
from course_grader.authoring.source import Catalog, notebook_of
from course_grader.school import build, supervise
from course_grader.school.gradebook import Course

LAB = "03_data_parallel"
FOLDER = Path("grading") / "demo"
MODULE = "course_grader.demo"
LIMIT_S = 1200.0  # of a submission: more than its notebook may take, and its page


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One student of the demonstration.

    Attributes
        student: id in the gradebook.
        story: what the student did, in a few words.
        exercise: whose answer differs from the reference, "" for none.
        wrong: name of that answer in the zoo.
        loses: parts of that exercise it must lose; nothing else may be lost.
        gate: gate that must stop the check, "" for none.
    """

    student: str
    story: str
    exercise: str = ""
    wrong: str = ""
    loses: frozenset[str] = frozenset()
    gate: str = ""


SUBMISSIONS = (
    Submission(student="correct", story="the reference"),
    Submission(
        student="never_overlaps",
        story="buckets are reduced only after backward",
        exercise="bucketed_ddp",
        wrong="buckets are sent after backward, nothing overlaps",
        loses=frozenset({"order", "clock"}),
    ),
    Submission(
        student="sums",
        story="gradients are summed, not averaged",
        exercise="naive_ddp",
        wrong="sums instead of averaging",
        loses=frozenset({"values", "bytes"}),
        gate="gradients",
    ),
    Submission(
        student="hangs",
        story="one rank never joins the others' all_reduce",
        exercise="naive_ddp",
        wrong="one rank never synchronises",
        loses=frozenset({"values", "bytes"}),
        gate="terminates",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Graded:
    """What came back for one submission.

    Attributes:
        feedback: its page, None if there is none.
        why: why it could not be graded, "" if it was.
    """

    submission: Submission
    cells: dict[str, GradedCell] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)
    feedback: Path | None = None
    seconds: float = field(default=0.0, compare=False)
    why: str = ""

    def problems(self) -> list[str]:
        """Return what differs from what the submission deserves; empty is right."""
        wanted = self.submission
        if self.why:
            return [f"{wanted.student} was not graded: {self.why}"]
        lost = {pair for cell in self.cells.values() for pair in cell.lost()}
        must = {(wanted.exercise, part) for part in wanted.loses}
        found = [f"lost {exercise}/{part}, which is right" for exercise, part in sorted(lost - must)]
        found += [f"kept {exercise}/{part}, which is wrong" for exercise, part in sorted(must - lost)]
        for cell in self.cells.values():
            found += self._cell_problems(cell)
        return [f"{wanted.student}: {text}" for text in found]

    def _cell_problems(self, cell: GradedCell) -> Iterable[str]:
        if cell.verdict is None or cell.errors:
            yield f"{cell.exercise} has no clean verdict: {cell.message()}"
            return
        points = sum(points for points, _ in cell.parts().values())
        score = self.scores[f"test_{cell.exercise}"]
        if abs(points - score) > 1e-9:
            yield f"{cell.exercise}: the gradebook has {score}, the verdict {points}"
        gate = self.submission.gate if cell.exercise == self.submission.exercise else ""
        if cell.verdict["gate"] != gate:
            yield f"{cell.exercise} must stop at gate {gate!r}; got {cell.verdict['gate']!r}"


def command(root: Path, console: Console) -> int:
    """Run the demonstration; return the exit status."""
    start = time.perf_counter()
    lab = build.find_lab(root, LAB)
    course = fresh_course(root / FOLDER, lab, build.default_catalog())
    release = course.release(lab.name).read_text(encoding="utf-8")
    reference = answers_of(
        nbformat.read(course.root / "solutions" / lab.name / f"{lab.name}.ipynb", as_version=4)
    )
    for submission in SUBMISSIONS:
        changed = {submission.exercise: zoo_answer(root, submission)} if submission.exercise else {}
        course.hand_in(submission.student, lab.name, filled_in(release, reference | changed))
    course.collect(lab.name)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Ctrl-C here ends every submission's process
    try:
        found = autograde_all(course.root, lab.name, console)
    except KeyboardInterrupt:
        console.print("the demonstration was interrupted; nothing of it runs any more", highlight=False)
        raise
    report(found, root, console)
    problems = [problem for one in found for problem in one.problems()]
    for problem in problems:
        console.print(f"WRONG  {problem}", markup=False, highlight=False, soft_wrap=True)
    verdict = f"{len(problems)} things are wrong" if problems else "every submission got what it deserves"
    console.print(f"\n{verdict} ({time.perf_counter() - start:.0f} s)", highlight=False)
    return int(bool(problems))


def fresh_course(folder: Path, lab: build.Lab, catalog: Catalog) -> Course:
    """Return an empty nbgrader course in `folder` that holds the source of `lab`."""
    shutil.rmtree(folder, ignore_errors=True)
    copy = build.Lab(name=lab.name, root=folder)
    build.replace_text(copy.solution, build.text_of(notebook_of(lab.source, catalog)))
    return Course(folder)


def zoo_answer(root: Path, submission: Submission) -> str:
    """Return the text of a wrong answer of the zoo."""
    from course_grader.zoo.answers import find_answer

    return find_answer(root, LAB, submission.exercise, submission.wrong)


def autograde_all(root: Path, lab: str, console: Console) -> list[Graded]:
    """Autograde every submission, a process each, with a progress bar; return them in order."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    commands = {s.student: supervise.module(MODULE, root, lab, s.student) for s in SUBMISSIONS}
    jobs = min(len(commands), os.cpu_count() or 2)
    ended: dict[str, supervise.Ended] = {}
    runs = supervise.run_all(commands, root / "grading", jobs=jobs, limit_s=LIMIT_S)
    with Progress(*columns, console=console) as bar, contextlib.closing(runs):
        task = bar.add_task(f"autograding {len(commands)} submissions", total=len(commands))
        for one in runs:
            ended[one.name] = one
            bar.advance(task)
    return [graded(root, lab, submission, ended[submission.student]) for submission in SUBMISSIONS]


def autograde(root: Path, lab: str, student: str) -> None:
    """Run, score and explain one submission: what a process of the demonstration does."""
    course = Course(root)
    course.autograde(student, lab)
    course.feedback(student, lab)


def graded(root: Path, lab: str, submission: Submission, ended: supervise.Ended) -> Graded:
    """Read what a process has left of a submission in files and in the gradebook."""
    if ended.why:
        return Graded(submission=submission, seconds=ended.seconds, why=ended.why)
    course, student = Course(root), submission.student
    notebook = nbformat.read(root / "grading" / "autograded" / student / lab / f"{lab}.ipynb", as_version=4)
    return Graded(
        submission=submission,
        cells=graded_cells(notebook),
        scores=course.scores(student, lab),
        feedback=root / "grading" / "feedback" / student / lab / f"{lab}.html",
        seconds=ended.seconds,
    )


def report(found: list[Graded], root: Path, console: Console) -> None:
    """Print scores by part, the feedback pages and the diagnosis of each lost part."""
    table = Table(title=f"Lab {LAB}: points in nbgrader's gradebook", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("exercise", no_wrap=True)
    table.add_column("part", no_wrap=True)
    for one in found:
        table.add_column(one.submission.student.replace("_", "\n"), justify="right", no_wrap=True)
    for exercise in grading.exercises(LAB):
        for row, part in enumerate(exercise.parts):
            name = "" if row else exercise.id + (" (bonus)" if exercise.bonus else "")
            table.add_row(name, part, *(_mark(one.cells.get(exercise.id), part) for one in found))
    table.add_section()
    table.add_row("total", "", *("none" if one.why else f"{sum(one.scores.values()):g}" for one in found))
    table.add_row("seconds", "", *(f"{one.seconds:.0f}" for one in found))
    console.print(table)
    for one in found:
        _report_one(one, root, console)


def _report_one(one: Graded, root: Path, console: Console) -> None:
    console.print(f"\n{one.submission.student}: {one.submission.story}", style="bold", highlight=False)
    if one.feedback is not None:
        console.print(f"  feedback: {one.feedback.relative_to(root)}", highlight=False, soft_wrap=True)
    for cell in one.cells.values():
        if cell.lost() or cell.errors:
            text = f"{cell.exercise}: {cell.message()}"
            for line in text.splitlines():
                wrapped = textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="    ")
                console.print(wrapped, markup=False, highlight=False, soft_wrap=True)


def _mark(cell: GradedCell | None, part: str) -> str:
    if cell is None or part not in cell.parts():
        return "[red]none[/red]"
    points, most = cell.parts()[part]
    return f"{points:g}/{most:g}" if points >= most else f"[red]{points:g}/{most:g}[/red]"


if __name__ == "__main__":
    supervise.end_with(int(sys.argv[1]))
    autograde(Path(sys.argv[2]), sys.argv[3], sys.argv[4])
