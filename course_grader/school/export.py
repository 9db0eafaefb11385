"""`course export-class FOLDER`: a repository for a class, without what its students are to find out.

It holds the files that git knows, without solutions, tests, the zoo and the instructor's pages; of the labs
only those of `class.toml`, as they are released here; and checks whose data are the open sizes only, so that
those of the grade are known to the instructor alone. It is a fresh repository: no history leads back.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import nbformat
from rich.console import Console

from course_grader.school import build, term

_LEFT_OUT = ("solutions/", "tests/", "benchmarks/", ".ci/", ".github/")
_FILES_LEFT_OUT = (
    "nbgrader_config.py",
    "CONTRIBUTING.md",
    "docs/benchmarks.md",
    "docs/index.md",
    "docs/instructor.md",
    "docs/adding-an-exercise.md",
    "docs/building-notebooks.md",
)
_README = """\
# From one GPU to 16,384: training at scale

The labs of your class are in `notebooks/`. Debian, Ubuntu and WSL2 need this first:
`sudo apt install make git python3-venv`.

```sh
make lab    # makes the environment .venv, then opens JupyterLab on notebooks/
```

`source .venv/bin/activate` makes these commands known:

| to | run |
|---|---|
| find out what this machine lacks | `course doctor` |
| check a lab from its file | `course check 03` |
| see where you stand | `course progress` |
| begin an exercise anew; your answer is kept | `course reset naive_ddp` |
| take a correction; your answers are carried over | `course update` |
| keep your work elsewhere, and bring it back | `course save FILE`, `course restore FILE` |

Do not commit your notebooks: git's last commit is what `reset` and `update` take for the release.

Code: Apache License 2.0 ([LICENSE](LICENSE)). Text and figures: CC BY 4.0 ([LICENSE-TEXT](LICENSE-TEXT)).
"""
_RULES = ("help", "setup", "lab", "clean")  # of the Makefile; the others work on files that are left out
_EXERCISES = "course_grader/labs/"
_SOLUTIONS = re.compile(r"\n*<details>.*</details>\s*\Z", re.S)


def command(root: Path, folder: Path, console: Console) -> int:
    """Make the repository. Raises: ValueError for a folder that holds something, or a course without git."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"the students' repository must go to a new folder; {folder} holds something")
    chosen = term.read(root).labs
    missing = [lab for lab in chosen if not build.find_lab(root, lab).release.exists()]
    if missing:
        raise ValueError(f"{missing[0]} must have a release; got none. run `course release {missing[0]}`")
    paths = [path for path in _tracked(root) if _belongs(path, set(chosen))]
    for path in paths:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = (root / path).read_bytes()
        if path.startswith(_EXERCISES) and path.endswith(".py"):
            data = without_hidden(data.decode("utf-8")).encode()
        elif path.endswith(".ipynb"):
            data = without_links(data.decode("utf-8")).encode()
        elif path == "Makefile":
            data = without_rules(data.decode("utf-8")).encode()
        elif path == "README.md":
            data = _README.encode()
        target.write_bytes(data)
        target.chmod((root / path).stat().st_mode & 0o777)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", "-A")
    console.print(
        f"{folder}: {len(paths)} files, {len(chosen)} labs. Look at it, then `git commit` and push it to "
        "where your students find it",
        highlight=False,
    )
    return 0


def _tracked(root: Path) -> list[str]:
    return sorted(
        path for path in git(root, "ls-files", "-z").split("\0") if path and (root / path).is_file()
    )


def git(folder: Path, *words: str) -> str:
    """Run git in `folder`; return what it prints. Raises: ValueError with its message."""
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"`git {words[0]}` must work in {folder}; it says: {done.stderr.strip()}")
    return done.stdout


def _belongs(path: str, labs: set[str]) -> bool:
    if path.startswith(_LEFT_OUT) or path in _FILES_LEFT_OUT:
        return False
    return not path.startswith("notebooks/") or path.split("/")[1] in labs


def without_links(text: str) -> str:
    """Return a notebook without the link to its solution."""
    notebook: Any = nbformat.reads(text, as_version=4)
    for cell in notebook.cells:
        if cell.get("id") == "course-solutions":
            cell.source = _SOLUTIONS.sub("", cell.source)
    return build.text_of(notebook)


def without_rules(text: str) -> str:
    """Return a Makefile that has, of the rules that `make help` lists, those of _RULES only."""
    blocks = re.split(r"(?m)(?=^[^\s#:=]+:(?!=))", text)  # each rule with its lines, and what comes before
    kept = [block for block in blocks if "## " not in block or block.partition(":")[0] in _RULES]
    return re.sub(r"(?m)^\.PHONY:.*$", f".PHONY: {' '.join(_RULES)}", "".join(kept))


def without_hidden(text: str) -> str:
    """Return an exercise file in which HIDDEN lists no sizes."""
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.Assign) and "HIDDEN" in map(ast.unparse, ast.walk(node.targets[0])):
            lines[node.lineno - 1 : node.end_lineno] = [_no_hidden(node)]
        elif isinstance(node, ast.AnnAssign | ast.AugAssign) and ast.unparse(node.target) == "HIDDEN":
            kept = f"HIDDEN: {ast.unparse(node.annotation)} = []\n" if isinstance(node, ast.AnnAssign) else ""
            lines[node.lineno - 1 : node.end_lineno] = [kept]
    return "".join(lines)


def _no_hidden(node: ast.Assign) -> str:
    """The assignment with every value that HIDDEN takes left empty: `OPEN, HIDDEN = [..], []`, too."""
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=True)
        kept = [v if ast.unparse(t) != "HIDDEN" else ast.List([]) for t, v in pairs]
        return f"{ast.unparse(target)} = {', '.join(map(ast.unparse, kept))}\n"
    return "HIDDEN = []\n"
