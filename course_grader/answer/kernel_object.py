"""The rule of `source.py` for a function or class of this process that no notebook cell holds."""

from __future__ import annotations

import dis
import functools
import linecache
import types
from collections.abc import Mapping
from typing import Any

from course_grader.answer.cells import Statement, is_stub
from course_grader.answer.source import behind_a_cache, not_written, parse, uses_variable
from course_grader.forbids import is_course


def check_object(obj: Any, symbol: str, exercise_id: str) -> None:
    """Apply the rule of `definitions` to a function or class of this kernel.

    Raises: GateFailed, with the words `definitions` uses.
    """
    home = getattr(obj, "__module__", None)
    names = _globals_of(obj)
    if names is None or is_course(home or "") or (home or "").split(".")[0] == "torch":
        return
    own = _cell_of(obj)
    name = getattr(obj, "__name__", symbol)
    bound = [s for s in own if name in s.binds]
    if bound and is_stub(bound[-1].node):
        raise not_written(exercise_id)
    others = parse(cell for cell in names.get("In", []) if isinstance(cell, str))
    _walk(obj, name, own, others, names, symbol)


def _walk(
    obj: Any,
    name: str,
    own: list[Statement],
    others: list[list[Statement]],
    names: Mapping[str, Any],
    symbol: str,
) -> None:
    home = getattr(obj, "__module__", None)
    seen: set[str] = {name}
    todo = _reads_of(obj, name, own)
    while todo:
        ref = todo.pop()
        if ref in seen or ref not in names:
            continue
        seen.add(ref)
        value = names[ref]
        in_answer = [s for s in own if ref in s.binds or ref in s.patches]
        if isinstance(value, functools._lru_cache_wrapper) and getattr(value, "__module__", None) == home:
            raise behind_a_cache(ref)
        if isinstance(value, type | types.FunctionType) and getattr(value, "__module__", None) == home:
            todo |= _reads_of(value, ref, _cell_of(value))
        elif isinstance(value, types.ModuleType | types.BuiltinFunctionType | type | types.FunctionType):
            continue
        elif in_answer:
            todo |= {r for s in in_answer for r in s.reads}
        else:
            todo |= _reads_of_variable(ref, value, others, symbol)


def _reads_of_variable(ref: str, value: Any, others: list[list[Statement]], symbol: str) -> set[str]:
    """What a variable from another cell depends on; refuses one that was computed."""
    for row in reversed(others):
        bound = [s for s in row if ref in s.binds or ref in s.patches]
        if not bound:
            continue
        if not all(s.is_plain for s in bound):
            raise uses_variable(symbol, ref)
        return {r for s in bound for r in s.reads}
    if not is_literal(value):
        raise uses_variable(symbol, ref)
    return set()


def is_literal(value: Any) -> bool:
    """Numbers, strings, None and containers of them."""
    if isinstance(value, list | tuple | set | frozenset):
        return all(is_literal(item) for item in value)
    if isinstance(value, dict):
        return all(is_literal(k) and is_literal(v) for k, v in value.items())
    return value is None or value is ... or type(value) in (bool, int, float, complex, str, bytes)


def _functions_of(obj: Any) -> list[types.FunctionType]:
    """The functions a function or class is made of."""
    if isinstance(obj, types.FunctionType):
        inner = [c.cell_contents for c in obj.__closure__ or () if _filled(c)]
        return [obj, *(f for f in inner if isinstance(f, types.FunctionType) and f is not obj)]
    if not isinstance(obj, type):
        return []
    found: list[types.FunctionType] = []
    for value in vars(obj).values():
        for f in (value, *(getattr(value, a, None) for a in ("__func__", "fget", "fset", "func"))):
            if isinstance(f, types.FunctionType) and f.__module__ == obj.__module__:
                found.append(f)
    return found


def _filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _globals_of(obj: Any) -> dict[str, Any] | None:
    functions = _functions_of(obj)
    return functions[0].__globals__ if functions else None


def _cell_of(obj: Any) -> list[Statement]:
    """The statements of the cell (or file) that defines `obj`, through linecache; empty if unknown."""
    for function in _functions_of(obj):
        text = "".join(linecache.getlines(function.__code__.co_filename))
        if text:
            return parse([text])[0]
    return []


def _reads_of(obj: Any, name: str, cell: list[Statement]) -> set[str]:
    """Names a definition uses: by its source (decorators, defaults, bases too), else by its bytecode."""
    bound = [s for s in cell if name in s.binds or name in s.patches]
    if bound:
        return {r for s in bound for r in s.reads}
    return {n for f in _functions_of(obj) for n in _names_of_code(f.__code__)}


def _names_of_code(code: types.CodeType) -> set[str]:
    inner = (const for const in code.co_consts if isinstance(const, types.CodeType))
    here = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return here.union(*(_names_of_code(c) for c in inner))
