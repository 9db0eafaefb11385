"""The zoo: for every exercise known right and wrong answers, and whether the grader tells them apart.

A wrong answer must lose exactly the parts it names; "wrong values" means that a gate fails and all is lost.
The reference and the stub come from the lab's source, the other answers from `tests/zoo/NN_topic/<id>.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from course_lib.grading.engine import OPEN_SEED, check
from course_lib.grading.exercise import Exercise, Verdict
from course_lib.grading.present import render
from course_lib.grading.registry import exercises, get
from course_lib.staff.zoo_changes import changed, source_of

ROOT = Path(__file__).resolve().parents[2]
MIN_RIGHT, MIN_WRONG = 2, 6
_CELL = re.compile(r"^# %%[ ]*(.*)$", re.M)
_HEAD = re.compile(r"^(right|wrong)\s*([\w, ]*):\s*(.+)$")
_SOLUTION = re.compile(r"^([ \t]*)### BEGIN SOLUTION.*?### END SOLUTION[^\n]*$", re.S | re.M)


@dataclass(frozen=True)
class Answer:
    """One answer of the zoo.

    Attributes:
        name: its style, or what is wrong with it.
        loses: parts it must lose; empty for a right one.
        says: texts the report must contain.
        cells: cells it is taken from, the last one its own.
    """

    name: str
    loses: tuple[str, ...]
    cells: tuple[str, ...]
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One line of the zoo's table."""

    exercise: str
    answer: str
    expected: str
    got: str
    problem: str = ""
    report: str = ""
    seconds: float = 0.0
    says: tuple[str, ...] = field(default=())


def percent_cells(text: str) -> Iterator[tuple[str, str]]:
    """Split a percent file into (title, body) pairs; markdown cells included."""
    marks = list(_CELL.finditer(text))
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        yield mark.group(1).strip(), text[mark.end() : after.start() if after else None].strip("\n")


def load_answers(path: Path, exercise: Exercise, root: Path = ROOT) -> list[Answer]:
    """Read the right and wrong answers of a zoo file. `root`: where the lab's source is.

    Raises: ValueError for a cell that is none of setup, right, wrong, or that names an unknown part.
    """
    setup, answers = "", list[Answer]()
    for title, body in percent_cells(path.read_text(encoding="utf-8")):
        if title == "setup":
            setup = body
            continue
        head = _HEAD.match(title)
        if head is None:
            raise ValueError(
                f"{path.name}: a cell is `setup`, `right: ...` or `wrong <parts>: ...`; got {title!r}."
            )
        kind, parts, name = head.groups()
        loses = tuple(part.strip() for part in parts.split(",") if part.strip())
        unknown = set(loses) - set(exercise.parts) - {"values"}
        if unknown or (kind == "wrong") != bool(loses):
            raise ValueError(f"{path.name}: {title!r} must name parts among {exercise.parts}; got {loses}.")
        says = tuple(re.findall(r"^# says:\s*(.+?)\s*$", body, flags=re.M))
        answers.append(Answer(name, loses, _cells(setup, body, answers, exercise, root), says))
    return answers


def _cells(
    setup: str, body: str, before: Sequence[Answer], exercise: Exercise, root: Path
) -> tuple[str, ...]:
    """The cells of an answer: its own after the set-up, or those of the answer that it changes.

    Raises: ValueError if that answer does not exist, or has not the text that is changed.
    """
    origin = source_of(body)
    if not origin:
        return (setup, body)
    known = {answer.name: answer for answer in before}
    if origin == "reference":
        cells, at = list(reference(root, exercise).cells), reference_at(root, exercise)
    elif origin in known:
        cells, at = list(known[origin].cells), -1
    else:
        raise ValueError(
            f"`# from:` must name `reference` or an answer above, {sorted(known)}; got {origin!r}."
        )
    cells[at] = changed(body, lambda _: cells[at])
    return tuple(cells)


def lab_cells(root: Path, lab: str) -> list[tuple[str, str]]:
    """Return (title, body) of the code cells of a lab's source."""
    text = (root / "solutions" / f"{lab}.py").read_text(encoding="utf-8")
    return [(title, body) for title, body in percent_cells(text) if not title.startswith("[markdown]")]


def reference_at(root: Path, exercise: Exercise) -> int:
    """Which code cell of a lab holds the answer to an exercise."""
    tag = re.compile(rf"""exercise=["']{re.escape(exercise.id)}["']""")
    titles = [title for title, _ in lab_cells(root, exercise.lab)]
    return next(i for i, title in enumerate(titles) if tag.search(title))


def reference(root: Path, exercise: Exercise, *, stub: bool = False) -> Answer:
    """Take the reference, or the stub a student starts from, out of the lab's source.

    Raises: ValueError if the source holds no cell of that exercise.
    """
    cells = lab_cells(root, exercise.lab)
    tag = re.compile(rf"""exercise=["']{re.escape(exercise.id)}["']""")
    if not any(tag.search(title) for title, _ in cells):
        raise ValueError(
            f'solutions/{exercise.lab}.py must hold a cell `# %% exercise="{exercise.id}"`; it does not.'
        )
    if stub:
        clear = rf'\1raise NotImplementedError("exercise {exercise.id}")'
        texts = tuple(_SOLUTION.sub(clear, body) if tag.search(title) else body for title, body in cells)
        return Answer("stub", ("values",), texts, ("not written yet", exercise.id))
    return Answer("reference", (), tuple(body for _, body in cells))


def zoo_path(root: Path, exercise: Exercise) -> Path:
    """Where the zoo file of an exercise is."""
    return root / "tests" / "zoo" / exercise.lab / f"{exercise.id}.py"


def find_answer(root: Path, lab: str, exercise_id: str, name: str) -> str:
    """Return the text of one answer, imports first, as a student would paste it into the exercise's cell."""
    del lab
    answers = load_answers(zoo_path(root, get(exercise_id)), get(exercise_id))
    chosen = next((a for a in answers if a.name == name), None)
    if chosen is None:
        raise ValueError(f"the zoo of {exercise_id} holds {[a.name for a in answers]}; got {name!r}.")
    return "\n\n".join(chosen.cells)


def answers_of(root: Path, exercise: Exercise) -> list[Answer]:
    """Reference, stub and the zoo file's answers."""
    answers = load_answers(zoo_path(root, exercise), exercise)
    _demand(exercise, answers)
    return [reference(root, exercise), reference(root, exercise, stub=True), *answers]


def _demand(exercise: Exercise, answers: list[Answer]) -> None:
    right = sum(not a.loses for a in answers)
    if right < MIN_RIGHT or len(answers) - right < MIN_WRONG:
        raise ValueError(
            f"the zoo of {exercise.id} must hold {MIN_RIGHT} right and {MIN_WRONG} wrong answers; "
            f"got {right} and {len(answers) - right}. Add what is missing."
        )


Judge = Callable[[Exercise, list[str], int], Verdict]


def judge_answer(
    exercise: Exercise, answer: Answer, *, seed: int, hidden: bool, judge: Judge | None = None
) -> Row:
    """Check one answer and compare with what it must get; `judge`: instead of the check on this machine."""
    started = time.perf_counter()
    if judge is None:
        verdict = check(exercise.id, list(answer.cells), seed=seed, hidden=hidden, quiet=True)
    else:
        verdict = judge(exercise, list(answer.cells), seed)
    expected = ", ".join(answer.loses) or "full marks"
    got = f"gate {verdict.gate}" if verdict.gate else (", ".join(verdict.lost) or "full marks")
    problem = _problem(answer, verdict)
    return Row(
        exercise.id,
        answer.name,
        expected,
        got,
        problem,
        render(verdict),
        time.perf_counter() - started,
        answer.says,
    )


def _problem(answer: Answer, verdict: Verdict) -> str:
    if not answer.loses:
        return "" if verdict.passed else "false reject"
    if verdict.passed:
        return "false accept"
    gated = answer.loses == ("values",)
    if not (verdict.gate if gated else set(verdict.lost) == set(answer.loses)):
        return "loses other parts"
    report = _flat(" ".join([verdict.message, *(p.message for p in verdict.parts.values())]))
    missing = [text for text in answer.says if _flat(text) not in report]
    return f"does not say {missing[0]!r}" if missing else ""


def _flat(text: str) -> str:
    """Without line breaks and capitals: what `# says:` compares."""
    return " ".join(text.split()).lower()


def run_zoo(
    root: Path,
    chosen: Sequence[Exercise],
    *,
    repeat: int = 1,
    on_row: Callable[[Row], None] | None = None,
    judge: Judge | None = None,
) -> list[Row]:
    """Judge every answer, `repeat` times with other data."""
    rows = []
    for turn in range(repeat):
        for exercise in chosen:
            for row in _rows_of(root, exercise, OPEN_SEED + turn, judge):
                rows.append(row)
                if on_row is not None:
                    on_row(row)
    return rows


def _rows_of(root: Path, exercise: Exercise, seed: int, judge: Judge | None) -> Iterator[Row]:
    try:
        answers = answers_of(root, exercise)
    except (OSError, ValueError) as error:
        yield Row(exercise.id, "(zoo)", "answers", "none", str(error))
        return
    for answer in answers:
        if judge is not None:
            answer = dataclasses.replace(answer, says=())
        yield judge_answer(exercise, answer, seed=seed, hidden=True, judge=judge)


def table(rows: list[Row], title: str = "Zoo") -> Table:
    """The table exercise x answer x verdict."""
    out = Table(title=title)
    for name in ("exercise", "answer", "must lose", "got", "s", "verdict"):
        out.add_column(name, justify="right" if name == "s" else "left")
    for row in rows:
        state = f"[red]{row.problem}[/red]" if row.problem else "ok"
        out.add_row(row.exercise, row.answer, row.expected, row.got, f"{row.seconds:.1f}", state)
    return out


def markdown(lab: str, rows: list[Row]) -> str:
    """The table as a page of the docs; no times, so that it changes only when a verdict does."""
    lines = [f"| `{r.exercise}` | {r.answer} | {r.expected} | {r.got} |" for r in rows]
    head = f"# The zoo of {lab}\n\nKnown answers, what each must lose, and what it got (`make zoo`).\n\n"
    return head + "\n".join(["| exercise | answer | must lose | got |", "|---|---|---|---|", *lines]) + "\n"


def write_pages(root: Path, rows: list[Row]) -> None:
    """Write docs/zoo/<lab>.md of each lab whose answers all got what they must."""
    for lab in sorted({get(row.exercise).lab for row in rows}):
        mine = [row for row in rows if get(row.exercise).lab == lab]
        if not any(row.problem for row in mine):
            (root / "docs" / "zoo").mkdir(exist_ok=True)
            (root / "docs" / "zoo" / f"{lab}.md").write_text(markdown(lab, mine), encoding="utf-8")


@contextlib.contextmanager
def _as_submissions_are() -> Iterator[Judge]:
    from course_lib.staff.courtroom import Courtroom
    from course_lib.staff.judge import judge_exercise
    from course_lib.staff.sandbox import Limits

    with Courtroom(Limits(wall_s=4 * 3600.0)) as room:  # for hundreds of answers, not a submission's few
        yield lambda exercise, cells, seed: judge_exercise(room, exercise, cells, seed)


def command(
    root: Path,
    lab: str | None,
    repeat: int,
    console: Console,
    chosen: Sequence[str] | None = None,
    sandbox: bool = False,
) -> int:
    """`course zoo`: judge all, print the table and the reports of what went wrong; return the exit status.

    `sandbox`: judged as submissions are, out of reach of the answers; what they are told may differ there.

    Raises: ValueError for a lab or an exercise that does not exist.
    """
    mine = [get(name) for name in chosen] if chosen else exercises(lab)
    if not mine:
        known = ", ".join(sorted({exercise.lab for exercise in exercises()}))
        raise ValueError(f"--lab must name a lab; got {lab!r}. Known: {known}")

    def progress(row: Row) -> None:
        console.print(
            f"{row.exercise}: {row.answer} -> {row.got}  {row.problem}", markup=False, highlight=False
        )

    with _as_submissions_are() if sandbox else contextlib.nullcontext() as judge:
        rows = run_zoo(root, mine, repeat=repeat, on_row=progress, judge=judge)
    console.print(table(rows))
    bad = [row for row in rows if row.problem]
    for row in bad:
        console.print(
            f"\n{row.exercise}: {row.answer}: {row.problem}\n{row.report}", markup=False, highlight=False
        )
    if not chosen and not sandbox:  # a page tells of a whole lab, and of the check that students see
        write_pages(root, rows[: len(rows) // repeat])
    console.print(f"{len(rows)} answers, {len(bad)} false verdicts")
    return int(bool(bad))
