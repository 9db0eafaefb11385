"""Run a submitted notebook in a sandbox for its feedback page, and keep only what cannot act in a browser.

The run decides nothing: scores are the judge's. Text, errors and PNG pictures of a bounded size are kept;
HTML, JavaScript, SVG and widgets, which would run where the instructor is logged in, are not.
"""

from __future__ import annotations

import base64
import contextlib
import html
import json
from collections.abc import Iterator
from typing import Any

import nbformat

from course_grader.authoring.demonstrations import is_demonstration, not_run
from course_grader.authoring.execute import FIGURE
from course_grader.authoring.filled_release import storable
from course_grader.inside.notebook_run import ENDS, MAX_CELL_BYTES, MAX_PICTURE, MAX_TEXT
from course_grader.judge.sandbox_runner import SandboxRunner
from course_grader.pages import pictures

MAX_PAGE_BYTES = 20_000_000  # of all outputs of a notebook
START_S = 60.0


def with_outputs(notebook: nbformat.NotebookNode, room: SandboxRunner) -> str:
    """Run the code cells of `notebook` in the submission's sandbox and put their outputs into it.

    Locked graded cells are not run, nor are demonstrations, which say so.

    Returns why the run ended early, "" if it did not.
    """
    limits = room.limits
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.outputs, cell.execution_count = [], None
    request = {
        "sources": ["" if _is_graded(cell) or is_demonstration(cell) else str(cell.source) for cell in cells],
        "timeouts_s": [
            limits.page_answer_cell_s if "nbgrader" in cell.metadata else limits.page_cell_s for cell in cells
        ],
    }
    for cell in filter(is_demonstration, cells):
        cell.outputs = [not_run()]
    end, reached, left = "", 0, MAX_PAGE_BYTES
    for frame in _frames(request, len(cells), room):
        if isinstance(frame, str):
            end = frame
        elif not _is_graded(cells[frame[0]]) and not is_demonstration(cells[frame[0]]):
            outputs = list(_harmless(frame[1]))
            left -= len(json.dumps(outputs))
            text = f"Not shown: a page holds at most {MAX_PAGE_BYTES // 1_000_000} MB of outputs.\n"
            cells[frame[0]].outputs = outputs if left > 0 or not outputs else [_note(text)]
            reached = frame[0] + 1
    if end:
        text = f"The run for this page ended here: {end}. Points do not depend on it.\n"
        late = cells[min(reached, len(cells) - 1) :]
        for cell in [cell for cell in late if not _is_graded(cell)][:1]:
            cell.outputs = [_note(text)]
    return end


def _note(text: str) -> Any:
    return nbformat.v4.new_output("stream", name="stdout", text=text)


def _is_graded(cell: Any) -> bool:
    return bool(cell.metadata.get("nbgrader", {}).get("grade"))


def _frames(
    request: dict[str, Any], count: int, room: SandboxRunner
) -> Iterator[tuple[int, list[Any]] | str]:
    """Yield (cell, its outputs) as cells end, then why the run ended early if it did.

    What comes may be forged by the student's code: of `count` cells each is believed once, in order.
    """
    room.killed.clear()
    last = -1
    try:
        for plain in room.pieces(request, room.limits.page_s + START_S, MAX_CELL_BYTES + 10_000):
            if "end" in plain:
                yield ENDS[ENDS.index(plain["end"])]
                return
            cell, outputs = plain["cell"], plain["outputs"]
            if type(cell) is not int or not last < cell < count or not isinstance(outputs, list):
                break
            last = cell
            yield cell, outputs
    except Exception:  # whatever a forged frame leads to; the page says that it ended
        pass
    yield f"the limit on {room.killed[-1]} was reached" if room.killed else "the kernel was ended"


def _harmless(outputs: list[Any]) -> Iterator[Any]:
    for output in outputs[:100]:
        with contextlib.suppress(Exception):  # whatever a forged output holds
            yield _plain_output(output)


def _plain_output(output: dict[str, Any]) -> Any:
    kind = output["output_type"]
    if kind == "stream":
        name = "stderr" if output["name"] == "stderr" else "stdout"
        return nbformat.v4.new_output("stream", name=name, text=_text(output["text"]))
    if kind == "error":
        lines = [_text(line) for line in output["traceback"][-40:]]
        names = {"ename": _text(output["ename"])[:200], "evalue": _text(output["evalue"])[:2000]}
        return nbformat.v4.new_output("error", **names, traceback=lines)
    data = {"text/plain": _text(output["data"].get("text/plain", ""))}
    figure = FIGURE.fullmatch(str(output["data"].get("text/html", "")))
    picture = figure["png"] if figure else str(output["data"].get("image/png", ""))
    if len(picture) > MAX_PICTURE:  # forged: `notebook_run` sends none of that size
        picture = ""
    if picture and (why := pictures.too_large("image/png", picture)):
        data["text/plain"] += f"\n{why}\n"
    elif picture:
        data["image/png"] = base64.b64encode(base64.b64decode(picture)).decode()
    alt = {"image/png": {"alt": html.unescape(figure["alt"])}} if figure and "image/png" in data else {}
    return nbformat.v4.new_output("display_data", data=data, metadata=alt)


def _text(value: Any) -> str:
    text = storable("".join(map(str, value)) if isinstance(value, list) else str(value))
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "\n... (cut)\n"
