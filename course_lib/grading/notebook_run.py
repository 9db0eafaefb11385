"""Run a notebook's cells inside the sandbox, for its feedback only: `python -m ... IN OUT`.

One frame comes in with the cells, one goes out for each cell that has ended: when the kernel dies or a limit
strikes, what was shown before is kept. Checks are not run here: the judge's verdicts take their place.
"""

from __future__ import annotations

import os
import sys
import tempfile
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from traitlets.config import Config

from course_lib.grading import wire

# The student's check cells say where their verdict is; nothing depends on this being so.
SETUP = """
import course_lib.grading as _grading
_grading.check = lambda *_, **__: print("judged outside this notebook: see the graded cell of the exercise")
_grading.score = lambda *_, **__: 0.0
del _grading
"""


class PageKernel(AsyncKernelManager):
    """Starts `page_kernel.py`, whatever kernels are installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """IPython's kernel, with another beginning."""
        argv = [sys.executable, "-m", "course_lib.grading.page_kernel", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="page", language="python")


def run(requests: int, answers: int) -> None:
    """Run the cells of one request; `timeouts_s` has the limit of each."""
    plain, _ = wire.unpack(wire.receive(requests))
    sources: list[str] = [SETUP, *plain["cells"]]
    timeouts_s: list[int] = [60, *plain["timeouts_s"]]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in sources])
    for cell, timeout_s in zip(notebook.cells, timeouts_s, strict=True):
        cell.metadata.timeout_s = timeout_s

    def ended(cell: Any, cell_index: int, **_: Any) -> None:
        if cell_index:
            wire.send(answers, wire.pack({"cell": cell_index - 1, "outputs": _outputs(cell)}))

    folder = tempfile.mkdtemp()
    client = NotebookClient(
        notebook,
        timeout_func=lambda cell: cell.metadata.timeout_s,
        allow_errors=True,
        kernel_manager_class=PageKernel,
        resources={"metadata": {"path": os.getcwd()}},
        on_cell_executed=ended,
        record_timing=False,
        shutdown_kernel="immediate",  # the sandbox ends next
        config=Config(
            KernelManager={"transport": "ipc", "connection_file": os.path.join(folder, "kernel.json")}
        ),
    )
    try:
        client.execute()
        wire.send(answers, wire.pack({"end": ""}))
    except CellTimeoutError:
        wire.send(answers, wire.pack({"end": "a cell ran longer than it may"}))
    except DeadKernelError:
        wire.send(answers, wire.pack({"end": "the kernel died"}))


def _outputs(cell: Any) -> list[Any]:
    return [dict(output) for output in cell.outputs[:200]]


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]))
