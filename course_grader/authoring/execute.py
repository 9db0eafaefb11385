"""Run a notebook with solutions and keep its outputs only when a reader could have got them anywhere.

An executed solution notebook is what a self-study reader compares with: it holds no error, no stderr, no
warning and no path or address of the machine that made it.
"""

from __future__ import annotations

import copy
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from course_grader import kernels
from course_grader.authoring.source import BuildError, where

CELL_TIMEOUT_S = 300
WARNING = re.compile(r"\b\w*Warning\b:")
# What may differ from machine to machine without telling a reader anything.
SCRUBBED = (
    (re.compile(r"0x[0-9a-fA-F]{6,16}\b"), "0x..."),
    (re.compile(r"(?:/[\w.+-]+)*/ipykernel_\d+/\d+\.py"), "cell.py"),
    (re.compile(r"\bpid[ =]\d+"), "pid ..."),
)
# A figure of the course as a notebook holds it: its alternative text, and dots that are nobody's to read.
FIGURE = re.compile(
    r'(?:<style>[^<>]*</style>)?<img alt="(?P<alt>[^"<>]*)" width="\d+" '
    r'(?:class="course-figure" )?style="min-width:\d+px[^"<>]*" '
    r'src="data:image/png;base64,(?P<png>[A-Za-z0-9+/=]+)">'
)
WIDGET = "application/vnd.jupyter.widget-view+json"
TEXT_TYPES = ("text/plain", "text/html", "text/markdown", "image/svg+xml", "application/json")


def executed(
    notebook: nbformat.NotebookNode, name: str, on_cell: Callable[[int, int], None] | None = None
) -> nbformat.NotebookNode:
    """Return a copy of `notebook` run top to bottom in an empty folder.

    Raises
        BuildError that names the cell: an error, output on stderr, a warning, or a path of this machine.
    """
    result = copy.deepcopy(notebook)
    with tempfile.TemporaryDirectory(prefix="course-run-") as folder:
        _run(result, name, folder, on_cell)
        problems = list(_clean(result, name, folder))
    if problems:
        raise BuildError(
            "an executed solution must be clean; got\n  " + "\n  ".join(problems) + "\nfix these cells"
        )
    result.metadata = copy.deepcopy(notebook.metadata)
    for cell in result.cells:  # a slider without its kernel is an error message
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if WIDGET not in output.get("data", {})]
    return result


def without_outputs(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return a copy with no outputs and no execution counts."""
    result = copy.deepcopy(notebook)
    for cell in result.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
            cell.metadata.pop("execution", None)
    return result


def _run(
    notebook: nbformat.NotebookNode, name: str, folder: str, on_cell: Callable[[int, int], None] | None
) -> None:
    def report(cell: Any, cell_index: int) -> None:  # noqa: ARG001 (nbclient passes both by name)
        if on_cell is not None:
            on_cell(cell_index + 1, len(notebook.cells))

    work = os.path.join(folder, "work")
    os.mkdir(work)
    options = {"timeout": CELL_TIMEOUT_S, "record_timing": False, "on_cell_complete": report}
    try:
        kernels.run(notebook, work, name=name, kernel_name="python3", **options)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        raise BuildError(
            f"every cell must run; got an error in {_failed(notebook, name)}:\n{_plain(str(error))}"
        ) from error


def _failed(notebook: nbformat.NotebookNode, name: str) -> str:
    """Name the cell that stopped the run: the last one that was started."""
    started = [
        (n, cell)
        for n, cell in enumerate(notebook.cells, start=1)
        if cell.get("execution_count") or cell.get("outputs")
    ]
    return where(name, *(started[-1] if started else (1, notebook.cells[0])))


def _clean(notebook: nbformat.NotebookNode, name: str, folder: str) -> Iterator[str]:
    machine = machine_paths(folder)
    for number, cell in enumerate(notebook.cells, start=1):
        for output in cell.get("outputs", []):
            for problem in _problems(output, machine):
                yield f"{where(name, number, cell)}: {problem}"


def _problems(output: Any, machine: list[str]) -> Iterator[str]:
    if output.output_type == "error":
        yield f"an error: {output.ename}: {output.evalue[:200]}"
        return
    if output.output_type == "stream" and output.name == "stderr":
        yield f"output on stderr: {output.text[:300]!r}"
    for holder, key in text_fields(output):
        for pattern, replacement in SCRUBBED:
            holder[key] = pattern.sub(replacement, holder[key])
        found = WARNING.search(holder[key])
        if found:
            yield f"a warning: {holder[key][max(0, found.start() - 20) : found.end() + 120]!r}"
        yield from (
            f"a path of this machine, {path!r}: print no absolute path"
            for path in machine
            if path in holder[key]
        )


def text_fields(output: Any) -> Iterator[tuple[Any, str]]:
    """Yield (holder, key) of every readable text of a notebook output."""
    if output.output_type == "stream":
        yield output, "text"
    for mime in output.get("data", {}):
        text = output.data[mime]
        if mime in TEXT_TYPES and isinstance(text, str) and not FIGURE.fullmatch(text):
            yield output.data, mime


def machine_paths(*more: str) -> list[str]:
    """Return the folders that would tell where a notebook was run."""
    folders = [*more, str(Path.home()), os.getcwd(), sys.prefix, tempfile.gettempdir() + os.sep]
    return sorted({folder for folder in folders if len(folder) > 4})


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
