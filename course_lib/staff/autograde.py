"""`course autograde LAB`: judge every submission, several at a time, and enter the scores into nbgrader.

Each submission ends in a named state. What is done is in the ledger, one transaction a submission, so that a
run killed at any moment is resumed by running it again: it does what is not there, and nothing twice.
"""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeftColumn
from rich.table import Table
from rich.text import Text

from course_lib.grading.present import render
from course_lib.grading.registry import exercises
from course_lib.staff import handed_in, judge, record, sandbox, showing
from course_lib.staff.build import find_lab
from course_lib.staff.handed_in import HandedIn
from course_lib.staff.ledger import Entry, Ledger

LEDGER = Path("grading") / "ledger.db"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to grade one lab.

    Attributes:
        root: the course's folder.
        lab: its name.
        trust: run student code without a sandbox.
        db_url: of nbgrader's gradebook; its SQLite file by default.
        show: run the notebook for the feedback page.
        budget_s: limit of judging one submission.
    """

    root: Path
    lab: str
    trust: bool = False
    db_url: str | None = None
    show: bool = True
    budget_s: float = 300.0

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.root / LEDGER)


def command(
    root: Path,
    name: str,
    console: Console,
    *,
    jobs: int = 1,
    trust: bool = False,
    db_url: str | None = None,
    again: bool = False,
) -> int:
    """Run `course autograde`; return the exit status: 0 if every submission ended in a state of its own."""
    sandbox.require(trust)
    lab = find_lab(root, name).name
    options = Options(root=root, lab=lab, trust=trust, db_url=db_url)
    students = _roster(options)
    submissions = handed_in.find(root, lab)
    if not submissions:
        raise ValueError(
            f"there must be submissions of {lab} in {root / handed_in.SUBMITTED}; got none. "
            f"run `course collect {lab}`, or put them there as <student>/{lab}/{lab}.ipynb"
        )
    _note_missing(options, students - {one.student for one in submissions})
    todo = [one for one in submissions if again or _needs_work(options, one)]
    if len(todo) < len(submissions):
        console.print(f"{len(submissions) - len(todo)} were graded before", highlight=False)
    for _ in range(
        3
    ):  # a worker that the machine killed takes its neighbours' pool along: go on with the rest
        try:
            _grade_all(options, todo, jobs, console)
            break
        except TerminatedWorkerError:
            todo = [one for one in todo if _needs_work(options, one)]
    return _report(options, console)


def _roster(options: Options) -> set[str]:
    """Return the students of the gradebook. Raises: ValueError if the lab was never released."""
    api = record.gradebook_api(options.root, options.db_url)
    try:
        with api.gradebook as gradebook:
            released = any(one.name == options.lab for one in gradebook.assignments)
            students = {student.id for student in gradebook.students}
    except Exception as error:
        raise ValueError(
            f"the gradebook must be one of this nbgrader; got {type(error).__name__}: {error}. "
            "Back it up, then `nbgrader db upgrade`"
        ) from error
    if not released:
        raise ValueError(f"{options.lab} must have been released; the gradebook has no such lab. "
                         f"run `course release {options.lab}`")  # fmt: skip
    return students


def _note_missing(options: Options, students: Iterable[str]) -> None:
    for student in students:
        text = "nothing was handed in"
        entry = Entry(student=student, lab=options.lab, digest="", state="missing", detail=text)
        options.ledger.write(entry)


def _needs_work(options: Options, one: HandedIn) -> bool:
    entry = options.ledger.entry(options.lab, one.student)
    return entry is None or not entry.recorded or entry.state == "failed" or entry.digest != one.digest()


def _grade_all(options: Options, todo: list[HandedIn], jobs: int, console: Console) -> None:
    name, rate = TextColumn("{task.description}"), TextColumn("{task.fields[rate]}")
    columns = (name, BarColumn(), MofNCompleteColumn(), rate, TimeElapsedColumn(), TimeLeftColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(options.lab, total=len(todo), rate="")
        start = time.monotonic()
        for done, entry in enumerate(_entries(options, todo, jobs), start=1):
            bar.update(task, advance=1, rate=f"{done / (time.monotonic() - start) * 60:.1f} a minute")
            if entry.state not in ("graded", "late"):
                text = (
                    f"{entry.student}: {entry.state}: {entry.detail.splitlines()[0] if entry.detail else ''}"
                )
                bar.console.print(text, markup=False, highlight=False, soft_wrap=True)


def _entries(options: Options, todo: list[HandedIn], jobs: int) -> Iterator[Entry]:
    run = Parallel(n_jobs=jobs, backend="loky", batch_size=1, return_as="generator_unordered")
    yield from run(delayed(grade)(options, one) for one in todo)


def grade(options: Options, one: HandedIn) -> Entry:
    """Grade one submission from file to gradebook. Never raises: what went wrong is in the entry."""
    start = time.monotonic()
    digest = one.digest()
    try:
        entry = options.ledger.entry(options.lab, one.student)
        if entry is None or entry.recorded or entry.state == "failed" or entry.digest != digest:
            entry = _judged(options, one, digest, start)
            options.ledger.write(entry)
        return _recorded(options, one, entry)
    except Exception as error:
        text = f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        failed = Entry(student=one.student, lab=options.lab, digest=digest, state="failed", detail=text)
        try:
            if options.ledger.entry(options.lab, one.student) is None:
                options.ledger.write(failed)
        except Exception:  # the disk is full: the next run finds nothing of this one, and does it again
            pass
        return failed


def _judged(options: Options, one: HandedIn, digest: str, start: float) -> Entry:
    """Return what the judge says; nothing of it is written yet."""
    entry = Entry(student=one.student, lab=options.lab, digest=digest, state="graded", detail=one.note)
    try:
        if one.notebook is None:
            raise judge.Unreadable(one.note)
        found = judge.judge_file(one.notebook, options.lab, trust=options.trust, budget_s=options.budget_s)
    except judge.Unreadable as error:
        return dataclasses.replace(entry, state="unreadable", detail=str(error))
    verdicts = {name: {**v.to_plain(), "report": render(v)} for name, v in found.verdicts.items()}
    state, detail = "graded", one.note
    if found.killed:
        state, detail = "killed by limit", f"limit on {', '.join(sorted(set(found.killed)))}"
    if found.flagged:
        state, detail = (
            "flagged",
            f"traffic and trace differ in {', '.join(found.flagged)}: look at the answer",
        )
    seconds = time.monotonic() - start
    return dataclasses.replace(entry, state=state, detail=detail, verdicts=verdicts, seconds=seconds)


def _recorded(options: Options, one: HandedIn, entry: Entry) -> Entry:
    """Make the feedback copy, enter everything into nbgrader, and note that."""
    notebook = copy_for_feedback(options, one, entry)
    stamp = one.folder / "timestamp.txt"
    timestamp = stamp.read_text(encoding="utf-8").strip()[:100] if stamp.is_file() else None
    late_s = record.record(options.root, entry, notebook, timestamp, options.db_url)
    if late_s > 0 and entry.state == "graded":
        entry = dataclasses.replace(entry, state="late", detail=f"{late_s / 3600:.1f} hours late")
        options.ledger.write(entry)
    options.ledger.mark_recorded(options.lab, one.student)
    return entry


def copy_for_feedback(options: Options, one: HandedIn, entry: Entry) -> Any:
    """Return the submission as nbgrader gets it: marked cells restored, outputs of a run, verdicts."""
    release: Any = nbformat.read(
        options.root / "notebooks" / options.lab / f"{options.lab}.ipynb", as_version=4
    )
    if entry.state == "unreadable" or one.notebook is None:
        notebook = handed_in.restored(nbformat.v4.new_notebook(), release)
    else:
        text = one.notebook.read_text(encoding="utf-8-sig")
        notebook = handed_in.restored(nbformat.reads(text, as_version=4), release)
        if options.show and entry.state != "killed by limit":
            showing.with_outputs(notebook, trust=options.trust)
    return record.with_verdicts(notebook, entry)


def _report(options: Options, console: Console) -> int:
    entries = options.ledger.entries(options.lab)
    table = Table(title=f"{options.lab}: {len(entries)} students")
    for head in ("student", "state", "points", "of", "seconds"):
        table.add_column(head, justify="left" if head in ("student", "state") else "right")
    most = sum(e.max_score for e in exercises(options.lab) if not e.bonus)
    for entry in entries:
        points, seconds = f"{entry.score:g}", f"{entry.seconds:.0f}"
        table.add_row(Text(entry.student), entry.state, points, f"{most:g}", seconds)
    console.print(table)
    states = Counter(entry.state for entry in entries)
    console.print(", ".join(f"{count} {state}" for state, count in states.items()), highlight=False)
    failed = [e for e in entries if e.state == "failed" or (e.state != "missing" and not e.recorded)]
    for entry in failed:
        text = f"{entry.student} is not in the gradebook yet: run the command again"
        console.print(text, markup=False, highlight=False)
    return int(bool(failed))
