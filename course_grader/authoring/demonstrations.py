"""Demonstrations: cells that only show something, tagged `demonstration` in a lab's source.

They train a model, or record one at full size, and decide no point. A reader runs them; the run of a
submission leaves them out. Nothing that is run there may use a name that only they make.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from typing import Any

from nbformat.v4 import new_output

TAG = "demonstration"
NOT_RUN = "A demonstration: it is run in your own notebook, not again for the points.\n"


def is_demonstration(cell: Any) -> bool:
    """Return whether a run for points leaves out `cell`; one that nbgrader knows is always run."""
    tags = cell.metadata.get("tags", [])
    known = "nbgrader" in cell.metadata or cell.cell_type != "code"
    return isinstance(tags, list) and TAG in tags and not known


def not_run() -> Any:
    """Return the output of a demonstration that was left out."""
    return new_output("stream", name="stdout", text=NOT_RUN)


def missing_names(cells: Iterable[Any]) -> list[str]:
    """Return "cell N uses NAME" for each name that a cell which is run has from demonstrations only."""
    made: set[str] = set(dir(builtins))
    shown: set[str] = set()
    problems = []
    for number, cell in enumerate(cells, start=1):
        if cell.cell_type != "code":
            continue
        tree = ast.parse(cell.source)
        if is_demonstration(cell):
            shown |= set(_names(tree, ast.Store)) - made
            continue
        made |= set(_names(tree, ast.Store))
        problems += [
            f"cell {number} uses {name}" for name in sorted(set(_names(tree, ast.Load)) & shown - made)
        ]
    return problems


def _names(tree: ast.AST, context: type) -> Iterator[str]:
    """Yield the names that a cell makes (Store) or uses (Load), those of its functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, context):
            yield node.id
        elif context is ast.Store and isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif context is ast.Store and isinstance(node, ast.arg):
            yield node.arg
        elif context is ast.Store and isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]
