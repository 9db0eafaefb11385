"""nbgrader's steps to a feedback page with nothing of a student's that could act in a browser.

`nbgrader_config.py` names what is here, so that `nbgrader generate_feedback` makes the same pages.
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

import bleach
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbgrader.converters import GenerateFeedback
from nbgrader.preprocessors import GetGrades, NbGraderPreprocessor

from course_lib.staff.execute import FIGURE

_WORDS = """a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li mark ol
p pre s small span strong sub summary sup table tbody td th thead tr u ul"""
_TAGS = frozenset(_WORDS.split())
_ATTRIBUTES = {"*": ["class", "id", "align"], "a": ["href", "title"], "img": ["src", "alt", "title", "width"]}


class SafePage(HTMLExporter):
    """nbconvert's pages with the HTML of markdown cells cleaned: students write markdown, too."""

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Render markdown, then drop every tag and attribute that is not plain text, a table or a picture."""
        made = super().markdown2html(context, source)
        protocols = ["http", "https", "mailto", "data"]
        return str(bleach.clean(made, tags=_TAGS, attributes=_ATTRIBUTES, protocols=protocols))


class PlainOutputs(NbGraderPreprocessor):  # type: ignore[misc]
    """Take whatever is not text or a picture out of outputs; figures of the course become pictures."""

    def preprocess_cell(self, cell: Any, resources: Any, cell_index: int) -> tuple[Any, Any]:
        del cell_index
        if cell.cell_type == "raw":
            cell.source = html.escape(cell.source)
        for output in cell.get("outputs", []):
            figure = FIGURE.fullmatch(str(output.get("data", {}).get("text/html", "")))
            if figure:
                output.data["image/png"] = figure["png"]
                output.metadata = {"image/png": {"alt": html.unescape(figure["alt"])}}
            for mime in list(_active(output)):
                del output.data[mime]
        return cell, resources


def _active(output: Any) -> Iterator[str]:
    kept = ("text/plain", "image/png", "image/jpeg", "application/vnd.course.verdict+json")
    return (mime for mime in output.get("data", {}) if mime not in kept)


def feedback_steps() -> list[type]:
    """Return nbgrader's steps from a graded notebook to its page."""
    default: list[type] = GenerateFeedback.class_traits()["preprocessors"].default_args[0]
    place = default.index(GetGrades) + 1
    return [*default[:place], PlainOutputs, *default[place:]]
