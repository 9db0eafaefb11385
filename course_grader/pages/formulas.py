"""Formulas of a page as pictures, drawn by matplotlib: a page shows them without network or script."""

from __future__ import annotations

import base64
import functools
import html
import re

from bs4 import BeautifulSoup

from course_lib.viz.formula import formula_svg

MAX_CHARACTERS, MAX_BRACES = 300, 20  # of a formula: beyond that it is shown as it was written
_FORMULA = re.compile(r"\$\$(?P<shown>[^$]+)\$\$|(?<![\\$\w])\$(?!\s)(?P<inline>[^$]+?)(?<!\s)\$(?![\w$])")
_SHORT = re.compile(r"\\frac(?P<top>\w)(?P<below>\w|\{)")  # TeX's \frac1B, which matplotlib does not read
_SIZE = re.compile(r"\\[Bb]igg?[lr]?(?![a-z])")  # of a parenthesis; matplotlib takes the usual one
_AS_IT_IS = {"code", "pre", "a"}


def drawn(made: str) -> str:
    """Return HTML in which formulas between dollars are pictures; one that cannot be drawn stays as text."""
    if "$" not in made:
        return made
    soup = BeautifulSoup(made, "html.parser")
    for text in soup.find_all(string=re.compile(r"\$")):
        if any(parent.name in _AS_IT_IS for parent in text.parents):
            continue
        parts, end = [], 0
        for match in _FORMULA.finditer(text):
            parts += [html.escape(text[end : match.start()]), _picture(match) or html.escape(match[0])]
            end = match.end()
        if end:
            parts.append(html.escape(text[end:]))
            text.replace_with(BeautifulSoup("".join(parts), "html.parser"))
    return str(soup)


def _picture(match: re.Match[str]) -> str:
    tex = " ".join((match["shown"] or match["inline"]).split())
    found = _image(tex)
    if found is None:
        return ""
    source, depth = found
    image = f'<img alt="{html.escape(tex)}" style="vertical-align:-{depth:.2f}pt" src="{source}">'
    return f'<div style="text-align:center;margin:1em 0">{image}</div>' if match["shown"] else image


@functools.lru_cache(maxsize=1000)
def _image(tex: str) -> tuple[str, float] | None:
    """Return a formula as the address of a picture, and how far it hangs below its line, in points."""
    if len(tex) > MAX_CHARACTERS or tex.count("{") > MAX_BRACES:
        return None
    text = _SIZE.sub("", _SHORT.sub(_in_braces, tex))
    try:
        svg, depth = formula_svg(text)
    except Exception:  # what matplotlib does not know, and whatever a hostile text makes a parser raise
        return None
    return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}", depth


def _in_braces(match: re.Match[str]) -> str:
    below = match["below"]
    return rf"\frac{{{match['top']}}}" + (below if below == "{" else f"{{{below}}}")
