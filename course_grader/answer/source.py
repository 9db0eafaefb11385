"""What counts as the student's answer: one rule, applied to an object in a kernel and to the cells of a file.

An answer may use modules, functions and classes of the notebook (these in turn by the same rule), literals,
lambdas, aliases, and what its own cell computes. Statements that change these come along (`effects.py`). Any
other notebook variable exists only in the memory of one kernel: the judge, which reads the file, does not
have it. The notebook's check takes the answer from the cells that ran, the judge from the file, both by this
rule: they run the same text, or refuse it with the same words.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from course_grader.answer.cells import Statement, is_stub, lines_of, statements
from course_grader.answer.effects import changed_by, definitions_in
from course_grader.exercise import GateFailed
from course_grader.why import Cause, Why


@dataclass(frozen=True)
class FromObject:
    """An answer that lives in this kernel; travels to the ranks by value."""

    obj: Any


@dataclass(frozen=True)
class FromSource:
    """An answer as text, executed in each rank in a fresh module.

    Attributes:
        text: the answer's cell, with blank lines for statements it does not need, so that line numbers stay;
            then what it needs of the cells below.
        symbol: what it defines.
        before: what the answer needs of the cells above, executed first.
        note: which of several cells it was taken from, "" where one binds its name.
    """

    text: str
    symbol: str
    before: str = ""
    note: str = ""


def uses_variable(symbol: str, name: str) -> GateFailed:
    """The one wording for a notebook variable that the judge cannot have."""
    return GateFailed(
        "implemented",
        Why(
            f"`{symbol}` uses notebook variable `{name}`, computed at run time; pass it as an argument or "
            "compute it inside."
        ),
    )


def behind_a_cache(name: str) -> GateFailed:
    """The one wording for what functools.cache or lru_cache wraps."""
    return GateFailed(
        "implemented",
        Why(
            f"`{name}` must be a plain function, which can travel to the ranks and runs at every call",
            "got one behind a cache",
            "Remove the decorator (functools.cache or lru_cache).",
        ),
    )


def not_written(exercise_id: str) -> GateFailed:
    """The one wording for an unfilled stub."""
    return GateFailed(
        "implemented",
        Why(
            f"exercise {exercise_id} is not written yet: fill in its cell, run it, then check again.",
            cause=Cause.UNWRITTEN,
        ),
    )


def stub_of(text: str) -> str | None:
    """Return the exercise whose stub raises NotImplementedError with this text; None: no stub does."""
    found = re.fullmatch(r"exercise (\w+)", text)
    return found[1] if found else None


def not_defined(symbol: str, exercise_id: str = "") -> GateFailed:
    """The one wording for a missing or renamed symbol."""
    head = f"exercise {exercise_id} is not written yet, or not run: " if exercise_id else ""
    return GateFailed(
        "implemented",
        Why(
            f"{head}`{symbol}` must be defined",
            "no cell that was run defines it",
            f"Run the exercise's cell, a code cell (and the cells above it), and keep the name `{symbol}`.",
        ),
    )


def holds_code(cell: Mapping[str, Any]) -> bool:
    """Whether a cell of a notebook's file is run: code, or an answer that became text by mistake."""
    if cell.get("cell_type") == "code":
        return True
    metadata = cell.get("metadata")
    marks = metadata.get("nbgrader") if isinstance(metadata, Mapping) else None
    return isinstance(marks, Mapping) and bool(marks.get("solution")) and not marks.get("grade")


def parse(cells: Iterable[str]) -> list[list[Statement]]:
    """Split cells into statements; a cell that is not Python counts as empty."""
    out = []
    for cell in cells:
        try:
            out.append(statements(cell))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            out.append([])
    return out


def cells_that_stand(history: list[str]) -> list[str]:
    """Return the last version of each cell that a kernel has run: what the notebook holds now.

    If one later cell binds every name of a cell again, the cell was edited and run again.
    """
    kept: list[tuple[str, frozenset[str]]] = []
    for cell, row in zip(reversed(history), reversed(parse(history)), strict=True):
        names = frozenset(name for s in row if not s.is_import for name in s.binds)
        if any(cell == later or (names and names <= theirs) for later, theirs in kept):
            continue
        kept.append((cell, names))
    return [cell for cell, _ in reversed(kept)]


def binds(cells: list[str], symbol: str) -> bool:
    """Whether a cell gives `symbol` a value."""
    return any(symbol in s.binds for row in parse(cells) for s in row)


def definitions(
    cells: list[str], symbol: str, exercise_id: str = "", *, were_run: bool = False
) -> FromSource:
    """Take the definition of `symbol` and all it needs from the cells of a notebook.

    were_run: they are a kernel's history, in which one cell may stand twice, before and after an edit.

    Raises: GateFailed if it is missing, unfilled, or uses what another cell computes.
    """
    parsed = parse(cells)
    answer = _last_cell_binding(parsed, symbol, len(parsed) - 1)
    if answer is None:
        raise _syntax_error(cells, symbol) or not_defined(symbol, exercise_id)
    note = _which(cells, parsed, symbol, answer, were_run)
    try:
        if _only_stubs(parsed[answer], symbol):
            raise not_written(exercise_id or symbol)
        taken = _closure(parsed, symbol, answer)
    except GateFailed as failed:
        raise GateFailed(failed.gate, failed.why.advised(note)) from failed
    needed = [
        [s for i, s in enumerate(row) if (cell, i) in taken or s.is_future] for cell, row in enumerate(parsed)
    ]
    above = [s for row in needed[:answer] for s in row]
    above.sort(key=lambda s: not s.is_future)
    below = [s for row in needed[answer + 1 :] for s in row if not s.is_future]
    return FromSource(_in_place([*needed[answer], *below]), symbol, before=_in_place(above), note=note)


def _which(cells: list[str], parsed: list[list[Statement]], symbol: str, answer: int, were_run: bool) -> str:
    """Say which cell is judged where an earlier one was written for it, too."""
    earlier = [
        place
        for place in range(answer)
        if any(symbol in s.binds for s in parsed[place]) and not _only_stubs(parsed[place], symbol)
    ]
    defines = any(
        isinstance(s.node, ast.FunctionDef | ast.ClassDef) for s in parsed[answer] if symbol in s.binds
    )
    if not earlier or (were_run and defines):
        return ""
    return (
        f"The last cell that gives `{symbol}` a value, {_named(cells[answer], symbol)}, is judged, "
        f"not the one above it, {_named(cells[earlier[-1]], symbol)}."
    )


def _named(cell: str, symbol: str) -> str:
    """Name a cell by its line that binds `symbol`, or else by its first."""
    lines = [line.strip() for line in lines_of(cell) if line.strip()]
    line = next((line for line in lines if re.search(rf"\b{re.escape(symbol)}\b", line)), lines[0])
    return f"with the line `{line if len(line) <= 60 else line[:57] + '...'}`"


def _in_place(body: list[Statement]) -> str:
    """Write statements one below the other, each at its line in its cell or where there is room."""
    lines: list[str] = []
    for statement in body:
        lines += [""] * (statement.line - 1 - len(lines))
        lines += lines_of(statement.text)
    return "".join(f"{line}\n" for line in lines)


def _only_stubs(row: list[Statement], symbol: str) -> bool:
    found = [s for s in row if symbol in s.binds]
    return bool(found) and is_stub(found[-1].node)


def _last_cell_binding(parsed: list[list[Statement]], name: str, upto: int) -> int | None:
    rows = [i for i in range(upto, -1, -1) if any(name in s.binds for s in parsed[i])]
    return rows[0] if rows else None


def _closure(
    parsed: list[list[Statement]], symbol: str, answer: int, *, by_name: bool = True
) -> set[tuple[int, int]]:
    """Return where the statements are that `symbol` needs: they bind a name, or change its object."""
    taken: set[tuple[int, int]] = set()
    homes: dict[str, int] = {}  # needed names -> the cell that binds them
    todo = [symbol]
    unresolved = set[str]()
    while todo:
        for name in dict.fromkeys(todo):
            if name in homes or name in unresolved:
                continue
            cell = _home(parsed, name, answer)
            if cell is None:
                unresolved.add(name)
                if name in _BY_NAME and by_name:
                    taken |= _found_by_name(parsed, answer)
                continue
            homes[name] = cell
            for where, statement in _bindings(parsed, name, cell):
                if where[0] != answer and not statement.is_plain:
                    raise uses_variable(symbol, name)
                taken.add(where)
        done = set(homes) | unresolved
        needed = {name for c, i in taken for name in parsed[c][i].needs}
        todo = sorted(needed - done) or sorted(_take_changes(parsed, homes, answer, taken) - done)
    if any(not hasattr(builtins, name) for name in unresolved):
        taken |= {(c, i) for c, row in enumerate(parsed) for i, s in enumerate(row) if s.is_star}
    return taken | _bound_above(parsed, homes, taken)


def _bound_above(
    parsed: list[list[Statement]], homes: Mapping[str, int], taken: set[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Imports and literals that statements find above themselves, where a later cell binds the name again."""
    found = set[tuple[int, int]]()
    for cell, place in taken:
        for name in parsed[cell][place].needs & homes.keys():
            at = _last_cell_binding(parsed, name, cell)
            if at is not None and at < homes[name]:
                above = _bindings(parsed, name, at)
                found |= {where for where, s in above if s.is_import or (s.is_plain and not s.needs)}
    return found


_BY_NAME = ("globals", "eval", "exec", "vars", "locals")  # through these code reaches any name at run time


def _home(parsed: list[list[Statement]], name: str, answer: int) -> int | None:
    """The cell that gives a name its value.

    A notebook is run from the top: what stands at or above the answer wins over what comes later.
    """
    cell = _last_cell_binding(parsed, name, answer)
    return cell if cell is not None else _last_cell_binding(parsed, name, len(parsed) - 1)


def _found_by_name(parsed: list[list[Statement]], answer: int) -> set[tuple[int, int]]:
    """Return all definitions at or above the answer that can travel: `globals()[name]` may mean any."""
    found = set[tuple[int, int]]()
    names = {
        name
        for row in parsed[: answer + 1]
        for s in row
        if s.is_plain and not s.is_import
        for name in s.binds
    }
    for name in names:
        with contextlib.suppress(GateFailed):
            found |= _closure(parsed, name, answer, by_name=False)
    return found


def _take_changes(
    parsed: list[list[Statement]], homes: Mapping[str, int], answer: int, taken: set[tuple[int, int]]
) -> set[str]:
    """Take the statements that change a needed name's object after it was bound; return what they need."""
    imported = {name for name, cell in homes.items() if _bindings(parsed, name, cell)[-1][1].is_import}
    known = definitions_in([s.node for row in parsed for s in row])
    needs = set[str]()
    for cell, row in enumerate(parsed[: max([answer, *homes.values()]) + 1]):
        for place, statement in enumerate(row):
            changed = changed_by(statement.node, known) - imported
            if (cell, place) not in taken and any(homes.get(name, cell + 1) <= cell for name in changed):
                taken.add((cell, place))
                needs |= statement.needs
    return needs


def _bindings(parsed: list[list[Statement]], name: str, cell: int) -> list[tuple[tuple[int, int], Statement]]:
    """The statements of a cell that give `name` its value; of imports the last one."""
    here = [((cell, i), s) for i, s in enumerate(parsed[cell]) if name in s.binds]
    return here[-1:] if here[-1][1].is_import else here


def _syntax_error(cells: list[str], symbol: str) -> GateFailed | None:
    pattern = re.compile(rf"^\s*(def|class)\s+{re.escape(symbol)}\b", re.M)
    for cell in cells:
        if pattern.search(cell):
            try:
                statements(cell)
            except SyntaxError as error:
                where = f"line {error.lineno} of its cell: {error.msg}"
                return GateFailed(
                    "implemented",
                    Why(f"`{symbol}` must be valid Python", f"syntax error in {where}", "Repair it."),
                )
    return None
