"""What steers by a verdict reads its fields; only `show` reads and makes its words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GRADER = ROOT / "course_grader"
WORDS = {"message", "must", "got", "advice", "report", "point"}  # a verdict's, and an exception's
READS = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "split", "rsplit", "splitlines"),
    *("partition", "rpartition", "find", "rfind", "index", "rindex", "count"),
}
FILES = sorted(path for path in GRADER.rglob("*.py") if "show" not in path.relative_to(GRADER).parts)


def holds_words(node: ast.AST) -> bool:
    """A name, an attribute or an entry that is called as the words of a verdict are; a text made of one."""
    if isinstance(node, ast.Name):
        return node.id == "message"
    if isinstance(node, ast.Attribute):
        return node.attr in WORDS
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in WORDS
    if isinstance(node, ast.Call):
        inner = node.func.value if isinstance(node.func, ast.Attribute) else None
        called = node.func.id if isinstance(node.func, ast.Name) else ""
        of_text = called == "str" and any(map(holds_words, node.args))
        return of_text or (inner is not None and node.func.attr in ("lower", "strip") and holds_words(inner))
    return False


def steered_by_words(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        found = False
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            ins = [
                side
                for op, side in zip(node.ops, sides[1:], strict=True)
                if isinstance(op, ast.In | ast.NotIn)
            ]
            equal = any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops)
            texts = any(
                isinstance(side, ast.Constant) and isinstance(side.value, str) and side.value
                for side in sides
            )
            found = any(map(holds_words, ins)) or (equal and texts and any(map(holds_words, sides)))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            of_re = isinstance(node.func.value, ast.Name) and node.func.value.id == "re"
            pattern = node.func.attr in (
                "match",
                "search",
                "fullmatch",
                "findall",
                "finditer",
                "sub",
                "split",
            )
            found = (node.func.attr in READS and holds_words(node.func.value)) or (
                (of_re or pattern) and any(map(holds_words, node.args))
            )
        if found:
            yield f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize(
    "text",
    [
        'if "TooMuchTime" in part.message: pass',
        'error.message.startswith("exercise ")',
        'where = verdict["message"].split("\\n")[0]',
        're.match("At [^:]+", part.why.must)',
        "_FLAG.match(v['message'])",
        'part.why.advice.partition(". ")',
        "if words not in str(part.why.got).lower(): pass",
        'if why.must == "it must": pass',
    ],
)
def test_reading_words_is_found(text: str) -> None:
    assert list(steered_by_words(ast.parse(text)))


@pytest.mark.parametrize(
    "text", ["if why.got: pass", "line(part.why)", "why.cause is Cause.TIME", '"x" in got']
)
def test_reading_fields_is_none(text: str) -> None:
    assert not list(steered_by_words(ast.parse(text)))


def test_nothing_outside_show_reads_the_words_of_a_verdict() -> None:
    found = {
        str(path.relative_to(ROOT)): lines
        for path in FILES
        if (lines := list(steered_by_words(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert not found
