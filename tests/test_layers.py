"""Directions inside the library that import-linter does not see: lazy imports, names in strings, circles."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("course_lib", "course_grader")
MODULE_NAME = re.compile(r"course_(?:lib|grader)(?:[./]\w+)+")
Imports = dict[str, set[str]]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))}


def ranks_of_layers() -> dict[str, int]:
    """Give every package or module below `course_lib` its height: 0 for the lowest layer."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["name"] == "Imports go down only")
    return {
        name: height
        for height, layer in enumerate(reversed(layers))
        for name in re.findall(r"course_lib\.\w+|course_grader", layer)
    }


HEIGHTS = ranks_of_layers()


def test_the_table_of_contributing_has_every_layer() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = "\n".join(line for line in text.splitlines() if re.match(r"\| L\d \|", line))
    missing = {name.rpartition(".")[2] for name in HEIGHTS} - set(re.findall(r"`(\w+)/?`", table))
    assert missing == set()


def height_of(module: str) -> int | None:
    package, *rooms = module.split(".")
    return HEIGHTS.get(package if package == "course_grader" else ".".join((package, *rooms[:1])))


def imported(tree: ast.AST) -> Iterator[str]:
    """Yield what a file imports at any depth: modules, and what may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else node.module for name in names)


def named_in_strings(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of the library that strings name, by dots or by slashes; a sentence may name any."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value.strip():
            yield from (found.replace("/", ".") for found in MODULE_NAME.findall(node.value))


def uppermost(names: set[str], below: int) -> set[str]:
    return {name for name in names if (height_of(name) or 0) > below}


def graph(source: dict[str, set[str]]) -> Imports:
    return {name: {found for found in names if found in MODULES} for name, names in source.items()}


TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}
IMPORTED = {name: set(imported(tree)) for name, tree in TREES.items()}


def circle(arrows: Imports) -> list[str]:
    """Return modules that import one another in a ring, [] if there are none."""
    done: set[str] = set()

    def walk(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        found = next(filter(None, (walk(other, [*path, name]) for other in sorted(arrows.get(name, ())))), [])
        done.add(name)
        return found

    return next(filter(None, (walk(name, []) for name in sorted(arrows))), [])


def test_every_module_has_a_layer() -> None:
    assert [name for name in MODULES if name != "course_lib" and height_of(name) is None] == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_there_are_no_circles_lazy_imports_counted() -> None:
    assert circle(graph(IMPORTED)) == []


def test_no_module_names_an_upper_one_in_a_string() -> None:
    heights = {name: height for name in MODULES if (height := height_of(name)) is not None}
    named = {name: uppermost(set(named_in_strings(TREES[name])), height) for name, height in heights.items()}
    assert {name: found for name, found in named.items() if found} == {}


def test_what_is_pure_python_needs_no_torch() -> None:
    pure = ("config", "units", "schedules", "cost", "planner")
    arrows = graph(IMPORTED)
    todo = [name for name in MODULES if name.startswith(tuple(f"course_lib.{room}" for room in pure))]
    needed: set[str] = set()
    while todo:
        name = todo.pop()
        if name not in needed:
            needed.add(name)
            todo += arrows[name]
    users = {name for name in needed if any(found.split(".")[0] == "torch" for found in IMPORTED[name])}
    assert users == set()


def test_matplotlib_is_only_in_viz() -> None:
    users = {
        name for name, found in IMPORTED.items() if any(one.split(".")[0] == "matplotlib" for one in found)
    }
    assert {name for name in users if not name.startswith("course_lib.viz")} == set()


def test_torch_distributed_stays_where_ranks_are() -> None:
    rooms = ("trace", "ranks", "comm", "parallel", "checkpoint", "compose", "calibrate", "train", "doctor")
    users = {
        name for name, found in IMPORTED.items() if any(one.startswith("torch.distributed") for one in found)
    }
    assert {
        name
        for name in users
        if not name.startswith(("course_grader", *(f"course_lib.{room}" for room in rooms)))
    } == set()


def test_environment_variables_are_read_where_processes_start() -> None:
    allowed = (
        "course_lib.ranks",
        "course_grader.school",
        "course_grader.judge",
        "course_grader.pages",
        "course_grader.inside.torchrun",
        "course_grader.inside.page_kernel",
        "course_lib.train.__main__",
        "course_lib.train.world",
        "course_grader.learner.jupyter",
    )
    users = {
        name
        for name, path in MODULES.items()
        if re.search(r"\bos\.(environ|getenv)\b", path.read_text("utf-8"))
    }
    assert {name for name in users if not name.startswith(allowed)} == set()
