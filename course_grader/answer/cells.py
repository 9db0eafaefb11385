"""Read notebook cells by `ast`: what each top-level statement binds, reads, and whether it is plain.

Plain means that the statement gives the same result wherever it runs: def, class, import, and assignments
of literals, lambdas and aliases. All else is computed at run time, and lives only in one notebook's memory.
"""

from __future__ import annotations

import ast
import re
import symtable
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from course_grader.answer.effects import running

_PYTHON_MAGICS = ("%%time", "%%capture", "%%timeit", "%%prun")
_PLAIN_EXPR = (
    ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop,
    ast.Name, ast.Attribute, ast.Subscript, ast.Slice, ast.expr_context, ast.JoinedStr, ast.FormattedValue,
)  # fmt: skip


def is_plain_expr(node: ast.expr | None) -> bool:
    """Literals, aliases (dotted names), lambdas and arithmetic on them; no call, no comprehension."""
    if node is None or isinstance(node, ast.Lambda):
        return True
    if not isinstance(node, _PLAIN_EXPR):
        return False
    return all(is_plain_expr(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr))


def is_stub(node: ast.stmt) -> bool:
    """A function with no body yet (docstring, pass, ..., NotImplementedError), or a class of only such."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return all(_is_filler(statement) for statement in node.body)
    if isinstance(node, ast.ClassDef):
        inner = [s for s in node.body if not isinstance(s, ast.AnnAssign)]
        # A class with nothing of its own is still an answer if it inherits from something that works.
        inherits = any(_last_name(base) not in ("object", "Module") for base in node.bases)
        return not inherits and all(_is_filler(s) or is_stub(s) for s in inner)
    return False


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else ast.unparse(node)


def _is_filler(node: ast.stmt) -> bool:
    if isinstance(node, ast.Raise) and node.exc is not None:
        return "NotImplementedError" in ast.unparse(node.exc)
    return isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))


@dataclass(frozen=True)
class Statement:
    """One top-level statement of a cell."""

    node: ast.stmt
    text: str

    @property
    def line(self) -> int:
        """Its first line in the cell, decorators included."""
        return _first_line(self.node)

    @cached_property
    def _table(self) -> symtable.SymbolTable:
        return symtable.symtable(self.text, "<cell>", "exec")

    @cached_property
    def binds(self) -> frozenset[str]:
        """Names this statement gives a value at the top level."""
        symbols = self._table.get_symbols()
        return frozenset(s.get_name() for s in symbols if s.is_assigned() or s.is_imported())

    @cached_property
    def patches(self) -> frozenset[str]:
        """Names whose object it changes: `X` in `X.step = f`, `X["a"] = 1`."""
        targets = self.node.targets if isinstance(self.node, ast.Assign) else []
        return frozenset(
            root
            for t in targets
            if isinstance(t, ast.Attribute | ast.Subscript) and (root := _root(t)) is not None
        )

    @cached_property
    def reads(self) -> frozenset[str]:
        """Names of the module it uses, at any depth; locals of its functions are not among them."""
        return frozenset(_global_reads(self._table))

    @cached_property
    def needs(self) -> frozenset[str]:
        """What it reads of what stands above: not what its own loops and `with` bind first."""
        own = set[str]()
        for inner in running([self.node]):
            if isinstance(inner, ast.For):
                own |= {n.id for n in ast.walk(inner.target) if isinstance(n, ast.Name)}
            elif isinstance(inner, ast.withitem) and inner.optional_vars is not None:
                own |= {n.id for n in ast.walk(inner.optional_vars) if isinstance(n, ast.Name)}
        return self.reads - own

    @property
    def is_import(self) -> bool:
        """An import."""
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def is_star(self) -> bool:
        """`from x import *`: may bind anything."""
        return isinstance(self.node, ast.ImportFrom) and self.node.names[0].name == "*"

    @property
    def is_future(self) -> bool:
        """`from __future__ import ...`."""
        return isinstance(self.node, ast.ImportFrom) and self.node.module == "__future__"

    @property
    def is_plain(self) -> bool:
        """Gives the same wherever it runs."""
        return _is_plain(self.node)


def _is_plain(node: ast.stmt) -> bool:
    if isinstance(
        node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Pass
    ):
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return is_plain_expr(node.value)
    if isinstance(node, ast.Try):
        inner = [*node.body, *node.orelse, *node.finalbody, *(s for h in node.handlers for s in h.body)]
        return all(_is_plain(s) for s in inner)
    if isinstance(node, ast.If):
        return is_plain_expr(node.test) and all(_is_plain(s) for s in [*node.body, *node.orelse])
    return False


def _root(node: ast.expr) -> str | None:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _global_reads(table: symtable.SymbolTable) -> Iterator[str]:
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (top or symbol.is_global()):
            yield symbol.get_name()
    for child in table.get_children():
        yield from _global_reads(child)


def clean(cell: str) -> str:
    """Return the Python of a cell: magics and shell lines made harmless, line numbers kept."""
    text = textwrap.dedent(cell)
    first = text.lstrip().split("\n", 1)[0]
    if first.startswith("%%"):
        if not first.startswith(_PYTHON_MAGICS):
            return ""
        text = text.replace(first, "", 1)
    text = re.sub(r"^([^\S\n]*+)%time[^\S\n]+(?=[^\s-])", r"\1", text, flags=re.M)
    text = re.sub(r"^([^\S\n]*+)[%!?][^\n]*$", r"\1pass", text, flags=re.M)
    text = re.sub(r"^([^\S\n]*+)[\w.]++\?\??[^\S\n]*$", r"\1pass", text, flags=re.M)
    return re.sub(r"^([^\S\n]*+[\w, ]++=[^\S\n]*+)[%!][^\n]*$", r"\1get_ipython()", text, flags=re.M)


def statements(cell: str) -> list[Statement]:
    """Split a cell into its top-level statements. Raises SyntaxError as Python does."""
    text = clean(cell)
    lines = lines_of(text)
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(text, "<cell>", "exec", flags, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    body = tree.body
    beside = zip(body, [None, *body], [*body[1:], None], strict=False)
    return [Statement(node, _text_of(node, lines, b, a)) for node, b, a in beside if _is_sync(node)]


def _is_sync(node: ast.stmt) -> bool:
    defines = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    awaits = ast.Await | ast.AsyncFor | ast.AsyncWith
    return defines or not any(isinstance(inner, awaits) for inner in ast.walk(node))


def _text_of(node: ast.stmt, lines: list[str], before: ast.stmt | None, after: ast.stmt | None) -> str:
    first = _first_line(node)
    last = node.end_lineno or first
    shared = before is not None and (before.end_lineno or 0) >= first
    shared = shared or (after is not None and _first_line(after) <= last)
    return ast.unparse(node) if shared else "\n".join(lines[first - 1 : last])


def lines_of(text: str) -> list[str]:
    """Split text where Python does: a form feed or U+2028, which `splitlines` knows too, ends no line."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])
