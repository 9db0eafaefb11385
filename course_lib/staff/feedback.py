"""nbgrader's steps to a feedback page with nothing of a student's that could act in a browser.

`nbgrader_config.py` names what is here, so that `nbgrader generate_feedback` makes the same pages.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator
from typing import Any

import bleach
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import InvalidNotebook
from nbgrader.converters import GenerateFeedback
from nbgrader.preprocessors import GetGrades, NbGraderPreprocessor

from course_lib.staff.execute import FIGURE

_WORDS = """a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li mark ol
p pre s small span strong sub summary sup table tbody td th thead tr u ul"""
_TAGS = frozenset(_WORDS.split())
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|svg\+xml);base64,[A-Za-z0-9+/=\s]*")
_LINK = re.compile(r"https?://|mailto:|#|[\w./-]+\Z")
# Characters of a cell, and seconds of a page: markdown beyond that is shown as it was written.
MAX_MARKDOWN, RENDER_S = 10_000, 10.0
_TEST_CELL = re.compile(r'<a href="#(test_)([\w-]+)">Test cell</a>')  # of nbgrader's table of contents
# Below nbgrader's own style, which knows neither wide screens nor tables.
_STYLE = """<style>
div#notebook-container { padding: 15px; }
.container { max-width: 1000px; width: auto; }
div.prompt { display: none; }
.rendered_html table { margin: 1em 0; border-collapse: collapse; }
.rendered_html th, .rendered_html td { padding: 0.3em 0.8em; border: 1px solid #ddd; }
.rendered_html { overflow-wrap: break-word; }
summary { display: list-item; cursor: pointer; }
.rendered_html img, .output_png img { max-width: 100%; }
.output_area pre, .input_area pre { white-space: pre-wrap; overflow-wrap: break-word; word-break: normal; }
.rendered_html th:empty { padding: 0; border: none; }
.anchor-link { display: none; }
div#toc ol { columns: 22em auto; }
</style>"""
# Nothing of a page may reach anybody; the scripts in it are nbconvert's, for formulas.
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="img-src data:; media-src \'none\'; '
    "frame-src 'none'; object-src 'none'; connect-src 'none'; form-action 'none'; base-uri 'none'\"/>"
)


def _is_harmless(tag: str, name: str, value: str) -> bool:
    if name in ("class", "id", "align", "title", "alt", "width"):
        return True
    if (tag, name) == ("img", "src"):
        return bool(_PICTURE.fullmatch(value))
    return (tag, name) == ("a", "href") and bool(_LINK.match(value))


class SafePage(HTMLExporter):
    """nbconvert's pages with the HTML of markdown cells cleaned: students write markdown, too."""

    _rendering_s = 0.0

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """Render markdown, then drop every tag and attribute that is not plain text, a table or a picture.

        A picture that is not in the notebook leaves its description; text that cannot be rendered is shown
        as it was written.
        """
        start = time.monotonic()
        try:
            if len(source) > MAX_MARKDOWN or self._rendering_s > RENDER_S:
                raise ValueError("too much")
            try:
                made = super().markdown2html(context, source)
            except InvalidNotebook:
                made = super().markdown2html(context, source.replace("attachment:", "missing:"))
            return str(bleach.clean(made, _TAGS, _is_harmless, ["http", "https", "mailto", "data"]))
        except Exception:  # whatever a hostile text makes a parser raise
            return f"<pre>{html.escape(source)}</pre>"
        finally:
            self._rendering_s += time.monotonic() - start

    def from_notebook_node(self, nb: Any, resources: Any = None, **kw: Any) -> tuple[Any, dict[str, Any]]:
        """Make the page: nbgrader's, with a style of ours and a policy that lets it load nothing."""
        self._rendering_s = 0.0
        page, resources = super().from_notebook_node(nb, resources, **kw)
        head, end, body = page.partition("</head>")
        body = _TEST_CELL.sub(r'<a href="#\1\2">\2</a>', body)
        return head.replace("<head>", f"<head>{_POLICY}", 1) + _STYLE + end + body, resources


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
