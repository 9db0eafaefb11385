"""What a student writes, made harmless where it is read: in the graded notebook and on its feedback page.

formgrader renders the graded notebook's markdown as it is, where the instructor is logged in; so it is
cleaned when that notebook is made. The steps to a feedback page, which `nbgrader_config.py` names for
`nbgrader generate_feedback`, trust nothing in it again.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

import bleach
import nbformat
from bs4 import BeautifulSoup
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import InvalidNotebook, IPythonRenderer, MarkdownWithMath
from nbconvert.filters.strings import strip_files_prefix
from nbgrader.converters import GenerateFeedback
from nbgrader.preprocessors import GetGrades, NbGraderPreprocessor

from course_grader.authoring.execute import FIGURE
from course_grader.pages import formulas
from course_grader.pages.pictures import MAX_MARKDOWN
from course_grader.pages.what_was_lost import OwnMaximum, WhatWasLost

_WORDS = """a abbr b blockquote br code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i img kbd li mark ol
p pre s small span strong sub summary sup table tbody td th thead tr u ul"""
_TAGS = frozenset(_WORDS.split())
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|svg\+xml);base64,[A-Za-z0-9+/=\s]*")
_LINK = re.compile(r"https?://|mailto:|#|[\w./-]+\Z")
RENDER_S = 10.0  # of a page: markdown beyond that is shown as it was written
# What a browser takes for the beginning of a tag; a space behind it does no harm in code and formulas either.
_TAG = re.compile(r"<(?!br ?/?>|https?://[^\s<>\"'&]*>)(?=[A-Za-z/!?])")
_LINKED, _LINKED_ELSEWHERE = re.compile(r"\](?=[(\[:])"), re.compile(r"\](?=[(\[:])(?!\(attachment:)")
# Beside _TAGS and what _is_harmless knows, mistune makes these of tables and lists.
_MADE_TAGS, _MADE_NAMES = _TAGS | {"input"}, ("style", "start", "type", "checked", "disabled")
_TEST_CELL = re.compile(r'<a href="#(test_)([\w-]+)">Test cell</a>')  # of nbgrader's table of contents
_COMMENT = re.compile(r'<a href="#comment-([\w-]+)">Comment</a>')
# Added to nbgrader's own style, which has no rules for phones, wide and dark screens, and tables.
_STYLE = """<style>
div#notebook-container { padding: 15px; }
.container { max-width: 1000px; width: auto; }
div.prompt { display: none; }
.rendered_html table { margin: 1em 0; border-collapse: collapse; }
.rendered_html th, .rendered_html td { padding: 0.3em 0.8em; border: 1px solid #ddd; }
.rendered_html { overflow-wrap: break-word; }
summary { display: list-item; cursor: pointer; }
.rendered_html img, .output_png img { max-width: 100%; }
pre { white-space: pre-wrap; overflow-wrap: break-word; word-break: normal; }
div.nbgrader_cell .panel-heading { height: auto; overflow: hidden; }
.rendered_html th:empty { padding: 0; border: none; }
.anchor-link { display: none; }
div#toc ol { columns: 22em auto; }
@media (prefers-color-scheme: dark) {
  html { background: #151515; }
  body { background: #fff; filter: invert(.93) hue-rotate(180deg); }
}
</style>"""
_SCRIPT = re.compile(r"<script\b.*?</script>", re.S)  # of nbconvert's templates, for formulas say
# A page may load and send nothing, and run nothing: its formulas are pictures.
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" content="script-src \'none\'; img-src data:; '
    "media-src 'none'; frame-src 'none'; object-src 'none'; connect-src 'none'; form-action 'none'; "
    "base-uri 'none'\"/>"
)


def _is_harmless(tag: str, name: str, value: str) -> bool:
    if name in ("class", "id", "align", "title", "alt", "width"):
        return True
    if (tag, name) == ("img", "src"):
        return bool(_PICTURE.fullmatch(value))
    return (tag, name) == ("a", "href") and bool(_LINK.match(value))


def make_harmless(notebook: Any, release: Any) -> None:
    """Change a student's text so that none of it runs or loads anything; the course's own stays as it is."""
    ours = {str(cell.source) for cell in release.cells if cell.cell_type == "markdown"}
    deadline_s = time.monotonic() + RENDER_S
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "raw":  # a page would hold it as HTML
            notebook.cells[place] = nbformat.v4.new_markdown_cell(_as_code(cell.source), id=cell.id)
        elif cell.cell_type == "markdown" and cell.source not in ours:
            cell.source = harmless(cell.source, cell.get("attachments", {}), deadline_s)


def harmless(source: str, attachments: Mapping[str, Any], deadline_s: float) -> str:
    """Return markdown that reads the same and runs or loads nothing, rendered raw by nbconvert or not.

    A space behind each "<" keeps it from opening a tag. If the rendered text still holds a link that is
    unsafe, links are broken in the same way, those to attached pictures last. If that is not enough, or after
    `deadline_s`, the text is shown as written.
    """
    if len(source) <= MAX_MARKDOWN:
        text = _TAG.sub("< ", source)
        for one in (text, _LINKED_ELSEWHERE.sub("] ", text), _LINKED.sub("] ", text)):
            if time.monotonic() < deadline_s and _acts_nowhere(one, attachments):
                return one
    return _as_code(source)


def _acts_nowhere(source: str, attachments: Mapping[str, Any]) -> bool:
    """Render markdown as formgrader does and look at every tag."""
    try:
        renderer = IPythonRenderer(escape=False, attachments=dict(attachments))
        strip: Any = strip_files_prefix  # nbconvert gives it no types
        made = strip(MarkdownWithMath(renderer).render(source))
        tags = BeautifulSoup(made, "html.parser").find_all(True)
    except Exception:  # whatever a hostile text makes a parser raise
        return False
    return all(
        tag.name in _MADE_TAGS
        and all(name in _MADE_NAMES or _is_harmless(tag.name, name, str(tag[name])) for name in tag.attrs)
        for tag in tags
    )


def _as_code(text: str) -> str:
    """Return markdown that shows a text as it is."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


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
            clean = bleach.clean(made, _TAGS, _is_harmless, ["http", "https", "mailto", "data"])
            return formulas.drawn(str(clean))
        except Exception:  # whatever a hostile text makes a parser raise
            return f"<pre>{html.escape(source)}</pre>"
        finally:
            self._rendering_s += time.monotonic() - start

    def from_notebook_node(self, nb: Any, resources: Any = None, **kw: Any) -> tuple[Any, dict[str, Any]]:
        """Make the page: nbgrader's, with a style of ours and a policy that lets it load nothing."""
        self._rendering_s = 0.0
        page, resources = super().from_notebook_node(nb, resources, **kw)
        head, end, body = page.partition("</head>")
        head = _SCRIPT.sub("", head)
        body = _TEST_CELL.sub(r'<a href="#\1\2">\2</a>', body)
        body = _COMMENT.sub(r'<a href="#comment-\1">Comment on \1</a>', body)
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
    return [*default[:place], OwnMaximum, WhatWasLost, PlainOutputs, *default[place:]]
