"""Formulas on a feedback page are pictures, and what is no formula stays text."""

from __future__ import annotations

import re
import time

import nbformat
import pytest
from bs4 import BeautifulSoup

from course_grader.pages import formulas
from course_grader.pages.feedback import SafePage
from course_grader.school import build
from course_grader.school.gradebook import REPOSITORY


def test_a_page_with_formulas_has_no_script() -> None:
    cells = [nbformat.v4.new_markdown_cell(r"The loss $\frac1B\sum_i \ell_i$ is **small**.")]
    page, _ = SafePage().from_notebook_node(nbformat.v4.new_notebook(cells=cells))  # type: ignore[no-untyped-call,unused-ignore]
    html = BeautifulSoup(page, "html.parser")
    assert not html.find_all("script")
    assert "script-src 'none'" in page
    assert html.img is not None
    assert html.img["alt"] == r"\frac1B\sum_i \ell_i"
    assert str(html.img["src"]).startswith("data:image/svg+xml;base64,")


@pytest.mark.parametrize(
    "text",
    [
        "<p>It costs $5 and $7, or $ 3 and 4 $.</p>",
        "<p><code>$x$</code></p>",
        r"<p>$\unknown{x}$</p>",
        "<p>$" + r"\frac{" * 30 + "a" + "}{b}" * 30 + "$</p>",
        "<p>$" + "x^" * 149 + "$</p>",
        "<p>$" + r"\left(" * 40 + r"\right)" * 40 + "$</p>",
    ],
)
def test_what_cannot_be_drawn_stays_as_it_was_written(text: str) -> None:
    start_s = time.process_time()
    assert formulas.drawn(text) == text
    assert time.process_time() - start_s < 5


def test_a_formulas_words_are_no_markup() -> None:
    html = BeautifulSoup(formulas.drawn("<p>a &lt;b&gt; $x&lt;y$ $$&lt;i&gt;$$</p>"), "html.parser")
    assert [image["alt"] for image in html.find_all("img")] == ["x<y", "<i>"]
    assert not html.find_all(["b", "i"])


@pytest.mark.parametrize("lab", build.labs(REPOSITORY), ids=lambda lab: lab.name[:2])
def test_every_formula_of_the_course_can_be_drawn(lab: build.Lab) -> None:
    notebook = nbformat.read(lab.release, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            made = SafePage().markdown2html({"cell": cell}, cell.source)
            for code in (soup := BeautifulSoup(made, "html.parser")).find_all(["code", "pre"]):
                code.decompose()
            assert not re.search(r"\$[^$\n]*[\\_^][^$\n]*\$", soup.get_text()), cell.source
