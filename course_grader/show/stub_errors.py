"""A cell that needs an exercise which is not written yet says so, in place of a traceback.

The cells after an exercise use its answer. While the answer is a stub they raise NotImplementedError, or
NameError for what a stopped cell above did not define. After a restart of the kernel every cell may do so.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any, TypeVar

from course_grader.answer.cells import statements
from course_grader.answer.source import stub_of
from course_grader.registry import ids, owner_of

T = TypeVar("T")
RUN_ABOVE = "Choose Run > Run All Above Selected Cell"


def explain_in(shell: Any) -> None:
    """Let an IPython shell explain what is not written or not run; other errors look as usual."""
    waiting: dict[str, str] = {}  # a name that a stopped cell would have made -> the exercise it stopped at

    def explain(shell: Any, kind: type, error: Any, traceback: Any, tb_offset: int | None = None) -> None:
        text = _unwritten(error, waiting, shell) or _not_run(error, waiting)
        if text:
            error._render_traceback_ = lambda: [text]
        shell.showtraceback((kind, error, traceback), tb_offset=tb_offset, running_compiled_code=True)

    shell.set_custom_exc((NameError, RuntimeError), explain)  # RuntimeError: an unwritten answer, or a rank's


def answer_or(exercise_id: str, answer: T, library: T) -> T:
    """Return `answer`; while it is a stub, say so and return the library's, so that what follows can run."""
    stub = f"exercise {exercise_id}"
    if not any(stub in code.co_consts for code in _codes(answer)):
        return answer
    print(f"{exercise_id} is not written yet: the library's takes its place here.")
    return library


def _codes(answer: Any) -> Iterator[CodeType]:
    """Yield the compiled functions of an answer: its own, or its methods'."""
    for value in (answer, *vars(answer).values()) if isinstance(answer, type) else (answer,):
        if isinstance(value, FunctionType):
            yield value.__code__


def exercise_at_fault(error: BaseException) -> str | None:
    """Return the exercise whose stub raised `error`, here or on a rank; None for any other error."""
    failures = getattr(error, "errors", None)
    texts = [str(error)] if isinstance(error, NotImplementedError) else []
    if isinstance(failures, dict):
        texts += [f.message for f in failures.values() if getattr(f, "type", "") == "NotImplementedError"]
    return next((name for name in map(stub_of, texts) if name in ids()), None)


def _unwritten(error: BaseException, waiting: dict[str, str], shell: Any) -> str | None:
    exercise = exercise_at_fault(error)
    if exercise is None:
        return None
    waiting.update(dict.fromkeys(_made_by(_last_cell(shell)), exercise))
    return (
        f"This cell needs your answer to the exercise {exercise}, which is not written yet. "
        "Write it, run its cell, then run this one again."
    )


def _not_run(error: BaseException, waiting: dict[str, str]) -> str | None:
    name = getattr(error, "name", None)
    if not isinstance(error, NameError) or not name:
        return None
    if name in waiting:
        return (
            f"`{name}` comes from a cell above that needs your answer to the exercise {waiting[name]}. "
            "Write that, then run the cells from there again."
        )
    owner = owner_of(name)
    if owner is None:
        return None
    return (
        f"`{name}` is not there: the cell of the exercise {owner.id} has not run in this kernel, which may "
        f"have been restarted. {RUN_ABOVE}."
    )


def _last_cell(shell: Any) -> str:
    cells = shell.user_ns.get("In") or [""]
    return str(cells[-1])


def _made_by(cell: str) -> set[str]:
    try:
        return {name for statement in statements(cell) for name in statement.binds}
    except SyntaxError:
        return set()
