"""Sphinx's settings; website/build.py lays out what it reads."""

import re
from typing import Any

from course_lib import IS_PUBLISHED, REPOSITORY, __version__

project = "From one GPU to 16,384"
release = __version__
language = "en"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx-mathjax-offline",
]
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath", "html_image"]
myst_heading_anchors = 4
autodoc_typehints = "description"
suppress_warnings = ["mystnb.unknown_mime_type", "misc.highlighting_failure", "docutils", "autodoc", "ref"]
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["course.css"]
html_show_sourcelink = False
html_theme_options = {"source_repository": REPOSITORY, "source_branch": "main"} if IS_PUBLISHED else {}
html_theme_options["top_of_page_buttons"] = []


def _quote_trailing_underscores(*arguments: Any) -> None:
    """Quote names such as `step_`, which reStructuredText would take for links."""
    lines: list[str] = arguments[-1]
    lines[:] = [re.sub(r"(?<![`\w.])([\w.]+_)(?![`\w])", r"``\1``", line) for line in lines]


def setup(app: Any) -> None:
    """Let docstrings be read as plain words."""
    app.connect("autodoc-process-docstring", _quote_trailing_underscores)
