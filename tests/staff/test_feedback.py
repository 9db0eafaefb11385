"""Feedback pages: whatever a student writes is shown, and nothing of it acts."""

from __future__ import annotations

import time

import nbformat
import pytest
from bs4 import BeautifulSoup

from course_lib.staff.feedback import MAX_MARKDOWN, RENDER_S, SafePage
from course_lib.staff.handed_in import restored

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def rendered(text: str, **cell: object) -> BeautifulSoup:
    """Return a markdown cell as it is on a page."""
    page = SafePage().markdown2html({"cell": nbformat.v4.new_markdown_cell(text, **cell)}, text)
    return BeautifulSoup(page, "html.parser")


def test_pictures_of_the_notebook_are_shown() -> None:
    html = rendered("![a plot](attachment:p.png)", attachments={"p.png": {"image/png": PNG}})
    assert html.img is not None
    assert html.img["src"] == f"data:image/png;base64,{PNG}"


@pytest.mark.parametrize(
    "text",
    [
        "![a plot](attachment:p.png)",
        "![a plot](http://192.0.2.1/tracker.png)",
        "![a plot](../../gradebook.db)",
        '<img alt="a plot" src="data:text/html;base64,AAAA">',
    ],
)
def test_a_picture_that_is_not_there_leaves_its_description(text: str) -> None:
    html = rendered(text)
    assert html.img is not None
    assert html.img.attrs == {"alt": "a plot"}


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1)) [x](JaVaScRiPt:1) [x](data:text/html,x) [x](vbscript:x)",
        "<a href=' javascript:alert(1)'>x</a> <a href='java&#10;script:alert(1)'>x</a>",
        "<iframe src='http://192.0.2.1'></iframe><object data=x></object><embed src=x><form action=x></form>",
        "<svg onload=alert(1)><style>*{display:none}</style><base href=x><meta http-equiv=refresh>",
        "<details open ontoggle=alert(1)><summary>x</summary></details>",
        "```mermaid\nclick A call alert(1)\n```",
    ],
)
def test_nothing_of_a_students_acts(text: str) -> None:
    html = rendered(text)
    assert not html.find_all(["script", "iframe", "object", "embed", "form", "svg", "style", "base", "meta"])
    for tag in html.find_all(True):
        assert set(tag.attrs) <= {"class", "id", "align", "title", "alt", "width"}, tag


def test_what_a_course_writes_is_kept() -> None:
    html = rendered(
        "[a](https://example.org) [b](#top)\n\n|a|b|\n|-|-|\n|1|2|\n\n<details><summary>x</summary>\n\n"
        "$y<1$\n\n</details>"
    )
    assert [a["href"] for a in html.find_all("a")] == ["https://example.org", "#top"]
    assert html.td is not None
    assert html.details is not None


@pytest.mark.parametrize("text", ["<div>" * 2000, "[" * 9999, "x" * 10**6])
def test_text_that_would_take_forever_is_shown_as_it_is(text: str) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    page, _ = SafePage().from_notebook_node(notebook)
    assert "Content-Security-Policy" in page.partition("</head>")[0]
    assert len(page) > len(text)


def test_a_page_has_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10_000, 4))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("**x**") for _ in range(6)])
    page, _ = SafePage().from_notebook_node(notebook)
    assert page.count("<strong>x</strong>") == int(RENDER_S // 4) + 1
    assert page.count("<pre>**x**</pre>") == 6 - (int(RENDER_S // 4) + 1)
    assert MAX_MARKDOWN > 5000  # the longest text cell of a lab


def test_a_copy_keeps_pictures_and_nothing_else_that_is_attached() -> None:
    attached = {
        "p.png": {"image/png": PNG, "text/html": "<script>"},
        "q": {"text/html": "<script>"},
        "r": {"image/png": ["no", "text"]},
    }
    cell = nbformat.v4.new_markdown_cell("x")
    cell["attachments"] = attached
    submitted = nbformat.v4.new_notebook(cells=[cell])
    copied = restored(submitted, nbformat.v4.new_notebook())
    assert copied.cells[0].attachments == {"p.png": {"image/png": PNG}}
