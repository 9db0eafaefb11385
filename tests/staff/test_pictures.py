"""Pictures on a feedback page: a student's own plots are there, none larger than a browser takes."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import nbformat
import pytest
from PIL import Image

from course_lib.grading import notebook_run
from course_lib.staff import feedback_run, pictures
from course_lib.staff.submissions import restored

PLOTS = {
    "shown": "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "drawn": "plt.plot([1, 2]);",
    "a value of pyplot's": "figure, axes = plt.subplots()\naxes.plot([1, 2])\nplt.close()\nfigure",
    "a value": "from matplotlib.figure import Figure\nown = Figure()\nown.subplots().plot([1, 2])\nown",
    "of the course": "from course_lib.viz import style\nours = style.new_figure(6, 3, 'a < b')\n"
    "ours.subplots().plot([1, 2])\nours",
    "huge": "plt.figure(figsize=(100, 100)).add_subplot().plot([1, 2])\nplt.show()",
}
HUGE = "from PIL import Image\nfrom IPython.display import display\ndisplay(Image.new('1', (10_000, 10_000)))"


def encoded(width: int, height: int, kind: str) -> str:
    buffer = io.BytesIO()
    Image.new("1" if kind == "png" else "L", (width, height)).save(buffer, kind)
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.needs("bubblewrap")
def test_a_page_has_the_students_plots_and_names_what_it_cannot_show() -> None:
    cells = [nbformat.v4.new_code_cell(text) for text in (*PLOTS.values(), HUGE, "print('after')")]
    notebook = nbformat.v4.new_notebook(cells=cells)
    assert feedback_run.with_outputs(notebook) == ""
    *plotted, huge, after = notebook.cells
    for name, cell in zip(PLOTS, plotted, strict=True):
        (output,) = cell.outputs
        width, height = pictures.pixels("image/png", output.data["image/png"]) or (0, 0)
        assert 100 < max(width, height) <= 2_000, name
        assert set(output.data) == {"text/plain", "image/png"}, name
    assert plotted[4].outputs[0].metadata == {"image/png": {"alt": "a < b"}}
    (output,) = huge.outputs
    assert "image/png" not in output.data
    assert "a picture of 10,000 x 10,000 pixels; a page holds 4,000 a side" in output.data["text/plain"]
    assert after.outputs[0].text == "after\n"


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_the_size_of_a_picture_is_in_its_first_bytes(kind: str) -> None:
    mime = f"image/{kind}"
    assert pictures.pixels(mime, encoded(300, 20, kind)) == (300, 20)
    assert pictures.too_large(mime, encoded(4_000, 20, kind)) == ""
    assert "20 x 10,000 pixels" in pictures.too_large(mime, encoded(20, 10_000, kind))
    for text in ("", "AAAA", "no base64!", encoded(300, 20, kind)[:20]):
        assert pictures.too_large(mime, text).startswith("Not shown: it must be a picture")


def test_an_attached_picture_that_is_too_large_is_named() -> None:
    cell = nbformat.v4.new_markdown_cell("My plots:")
    cell["attachments"] = {
        "small.jpg": {"image/jpeg": encoded(30, 20, "jpeg")},
        "wide.png": {"image/png": encoded(10_000, 10_000, "png")},
        "long.png": {"image/png": "A" * 2_000_004},
    }
    submitted = nbformat.v4.new_notebook(cells=[cell])
    (copy,) = restored(submitted, nbformat.v4.new_notebook()).cells
    assert set(copy.attachments) == {"small.jpg"}
    assert "wide.png: Not shown: a picture of 10,000 x 10,000 pixels" in copy.source
    assert "long.png: Not shown: a picture of 1.5 MB" in copy.source


def test_a_picture_with_too_many_bytes_is_named() -> None:
    data = {"text/plain": "<Figure>", "image/png": "A" * 2_000_004}
    shown: Any = nbformat.v4.new_output("display_data", data=data)
    (sent,) = notebook_run._outputs(nbformat.v4.new_code_cell("x", outputs=[shown]))
    assert sent["data"] == {"text/plain": "Not shown: a picture of 1.5 MB; a page holds 1.5 MB each."}
    assert len(json.dumps(sent)) < 200
