"""Which modules of the course a module needs, read from their files: what a sandbox must not take away."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import course_lib
from course_grader.forbids import is_course

ROOT = Path(course_lib.__file__).resolve().parents[1]  # of both packages


@functools.cache
def course_modules(roots: Sequence[str]) -> frozenset[str]:
    """Return `roots` and every module of the course that importing them can import."""
    seen: set[str] = set()
    todo = list(roots)
    while todo:
        name = todo.pop()
        if name not in seen and file_of(name) is not None:
            seen.add(name)
            todo += _imports(name)
    return frozenset(seen)


def file_of(module: str) -> Path | None:
    """Return the file of a module of the course, None if there is none."""
    path = ROOT.joinpath(*module.split("."))
    found = (path / "__init__.py", path.with_suffix(".py"))
    return next((file for file in found if is_course(module) and file.is_file()), None)


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    file = file_of(module)
    assert file is not None
    return tuple(_names(ast.parse(file.read_text(encoding="utf-8"))))


def _names(tree: ast.AST) -> Iterator[str]:
    for node in _run_at_import(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _with_parents(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from _with_parents(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _run_at_import(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those that only a type checker reads; functions may import when they are called."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _run_at_import(child)


def _with_parents(name: str) -> Iterator[str]:
    words = name.split(".")
    yield from (".".join(words[: n + 1]) for n in range(len(words)))
