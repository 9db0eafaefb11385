"""What a student reads: the report of a check, hints, and the card above an exercise."""

from __future__ import annotations

import textwrap

from course_grader.answer.kernel import in_notebook
from course_grader.exercise import PartResult, Result
from course_grader.registry import get
from course_grader.show.exercise_card import card as card
from course_grader.show.report_card import card_html
from course_grader.show.text import line

MIME = "application/vnd.course.verdict+json"
_WIDTH = 110


def render(verdict: Result) -> str:
    """Return the report: one line if everything holds, else what failed, where, and what to do next."""
    exercise = verdict.exercise
    mark = f"{_points(verdict.score)}/{_points(verdict.max_score)}"
    note = f"\n{_wrap(verdict.note)}" if verdict.note else ""
    if verdict.passed:
        checked = "; ".join(f"{name}: {_phrase(line(part.why))}" for name, part in verdict.parts.items())
        where = f" ({_cases(verdict.cases)})" if not exercise.numeric else ""
        return f"PASS  {exercise.id}  {mark}  {checked}{where}{note}"
    if verdict.gate:
        head = f"FAIL  {exercise.id}  {mark}  not passed: {verdict.gate}"
        return f"{head}\n{_wrap(line(verdict.why))}{note}\n{_next(verdict)}"
    rows = [_row(name, part) for name, part in verdict.parts.items()]
    return "\n".join([f"PART  {exercise.id}  {mark}", *rows]) + f"{note}\n{_next(verdict)}"


def _row(name: str, part: PartResult) -> str:
    state = "ok  " if part.ok else "lost"
    head = f"  {state}  {name} {_points(part.points)}/{_points(part.max_points)}: "
    return _wrap(head + line(part.why), later="        ")


def _next(verdict: Result) -> str:
    exercise = verdict.exercise
    sizes = ", hidden=True" if verdict.hidden else ""
    replay = f'grading.check("{exercise.id}", {exercise.symbol}, seed={verdict.seed}{sizes})'
    hint_call = f'grading.hint("{exercise.id}")'
    if verdict.gate == "implemented":
        return f"  hint: {hint_call}"
    return f"  hint: {hint_call}   same data again: {replay}"


def _wrap(text: str, later: str = "  ") -> str:
    """Wrap long lines; lines that are short or indented (reports, code) stay as they are."""
    out = []
    for row in text.splitlines():
        if len(row) <= _WIDTH:
            out.append(row)
        else:
            out += textwrap.wrap(row, _WIDTH, subsequent_indent=later, break_long_words=False)
    return textwrap.indent("\n".join(out), "  ", lambda line: not line.startswith("  "))


def _phrase(text: str) -> str:
    return text.rstrip(".")


def _cases(names: tuple[str, ...]) -> str:
    """ "1, 2 and 3 ranks" where that says it all, else the names."""
    counts = [
        name.split(" ")[0] for name in names if name.endswith((" ranks", " rank")) and name.count(" ") == 1
    ]
    if len(counts) == len(names) > 1:
        return f"{', '.join(counts[:-1])} and {counts[-1]} ranks"
    text = "; ".join(names)
    return text if len(text) <= _WIDTH else f"{len(names)} cases, the numbers of: {names[-1]}"


def _points(points: float) -> str:
    return f"{points:g}"


def show(verdict: Result, *, as_card: bool = True) -> None:
    """Display the report in a notebook, as a card with data and text beside it; print it elsewhere."""
    text = render(verdict)
    if not in_notebook():
        print(text, flush=True)
        return
    from IPython.display import display

    bundle = {MIME: verdict.to_plain(), "text/plain": text}
    if as_card:
        bundle["text/html"] = card_html(verdict)
    display(bundle, raw=True)  # type: ignore[no-untyped-call,unused-ignore]


def say(text: str) -> None:
    """Print a line, even where printing fails."""
    try:
        print(text, flush=True)
    except (OSError, ValueError):
        return


def hint(exercise_id: str, step: int = 1) -> None:
    """Print one of three hints, each more precise than the one before; none is the solution."""
    exercise = get(exercise_id)
    if step not in (1, 2, 3):
        raise ValueError(f"step must be 1, 2 or 3; got {step!r}. Start with grading.hint({exercise_id!r}).")
    print(_wrap(f"Hint {step} of 3: {exercise.hints[step - 1]}"))
    if step < 3:
        print(f"  more: grading.hint({exercise_id!r}, {step + 1})")
