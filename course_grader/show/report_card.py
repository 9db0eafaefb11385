"""A verdict as JupyterLab shows it: what went wrong first, then a row per part, the rest below folds.

Signs and words say what colours say. The text colour is the page's own, so the card reads on a light and on a
dark theme. A terminal, and nbgrader's cells, get `report.render` instead.
"""

from __future__ import annotations

import html
import re

from course_grader.exercise import PartResult, Result
from course_grader.show.text import line
from course_grader.why import Why

GOOD, BAD, IDLE = "#009E73", "#D55E00", "#8C8C8C"  # Okabe and Ito's green and vermillion, and a grey
OK, LOST, NOT_TRIED = "✓", "✗", "·"
GATES = {
    "implemented": "not written yet",
    "closed": "uses what this exercise closes",
    "signature": "cannot be called as the program calls it",
    "runs": "stops with an error",
    "terminates": "does not end",
    "inputs": "changes its arguments",
    "shape": "wrong shape",
    "dtype": "wrong dtype",
    "values": "wrong values",
    "gradients": "wrong gradients",
}
_CELL = "text-align:left;vertical-align:top;padding:3px 14px 3px 0;border:0;white-space:normal"
_BUTTON = (
    "display:inline-block;cursor:pointer;border:1px solid currentColor;border-radius:4px;padding:2px 10px"
)


def card_html(verdict: Result) -> str:
    """Return the card: at most one screen, whatever the message."""
    body = _gate(verdict) if verdict.gate else _mistakes(verdict) + _table(verdict)
    body += f"<div>{_prose(verdict.note)}</div>" if verdict.note else ""
    folds = "" if verdict.passed else _hints(verdict) + _again(verdict)
    color = GOOD if verdict.passed else IDLE if verdict.gate == "implemented" else BAD
    box = f"border-left:5px solid {color};padding:2px 0 2px 14px;margin:4px 0;line-height:1.5"
    return f'<div style="{box}">{_head(verdict)}{body}{folds}</div>'


def _head(verdict: Result) -> str:
    exercise = verdict.exercise
    sign = (
        badge(OK, GOOD)
        if verdict.passed
        else badge(NOT_TRIED, IDLE)
        if verdict.gate == "implemented"
        else badge(LOST, BAD)
    )
    state = f": {GATES.get(verdict.gate, verdict.gate)}" if verdict.gate else ""
    bonus = " (bonus)" if exercise.bonus else ""
    points = f"{verdict.score:g} of {_points(verdict.max_score)}{bonus}"
    return f"<div>{sign} <b><code>{exercise.id}</code>{html.escape(state)}</b> &ensp; {points}</div>"


def _gate(verdict: Result) -> str:
    stakes = ", ".join(f"{name} {points:g}" for name, points in verdict.exercise.points.items())
    later = f"<div>No points until this holds: {html.escape(stakes)}.</div>"
    why = verdict.why
    advice = f"<div><b>{_prose(why.advice)}</b></div>" if why.advice else ""
    return advice + _what(why) + later


def _what(why: Why) -> str:
    """What must hold, what was seen and at which point, a line each; one line where nothing was seen.

    Of what quotes an answer, the first line: the others fold, as the report does.
    """
    must, _, more = why.must.partition("\n")
    got, _, further = why.got.partition("\n")
    where = f" (at {html.escape(why.case)})" if why.case else ""
    point = f"<div>{html.escape(' '.join(why.point.split()))}</div>" if why.point else ""
    if got:
        lines = f"<div>Expected: {_sentence(must)}</div><div>Seen{where}: {_sentence(got)}</div>"
    else:
        lines = f"<div>{_sentence(must, where)}</div>"
    return lines + point + _report("\n".join(filter(None, (more, further, why.report))))


def _mistakes(verdict: Result) -> str:
    """The named mistakes of all lost parts, before everything else."""
    said = dict.fromkeys(part.why.advice for part in verdict.parts.values() if not part.ok)
    return "".join(f"<div><b>{_prose(words)}</b></div>" for words in said if words)


def _table(verdict: Result) -> str:
    rows = "".join(_row(name, part) for name, part in verdict.parts.items())
    cases = ""
    if verdict.passed and not verdict.exercise.numeric and verdict.cases:
        names = "".join(f"<li>{html.escape(name)}</li>" for name in verdict.cases)
        cases = _fold(f"{len(verdict.cases)} case{'s' * (len(verdict.cases) != 1)} run", f"<ul>{names}</ul>")
    return f'<table style="border:0;margin:4px 0;font-size:inherit">{rows}</table>{cases}'


def _row(name: str, part: PartResult) -> str:
    what = f"{_prose(line(part.why)).rstrip('.')}" if part.ok else _what(part.why)
    sign = badge(OK, GOOD) if part.ok else badge(LOST, BAD)
    points = f"{part.points:g} of {part.max_points:g}"
    narrow = _CELL.replace("normal", "nowrap")
    cells = "".join(f'<td style="{narrow}">{words}</td>' for words in (sign, f"<b>{name}</b>", points))
    return f'<tr style="background:none">{cells}<td style="{_CELL}">{what}</td></tr>'


def _report(report: str) -> str:
    if not report:
        return ""
    lines = html.escape(report.strip("\n"))
    return _fold("the whole report", f'<pre style="overflow-x:auto;white-space:pre">{lines}</pre>')


def _hints(verdict: Result) -> str:
    """A button for the first hint; each opens with the button of the next."""
    inner = ""
    for step in (3, 2, 1):
        button = f'<summary style="{_BUTTON}">Hint {step} of 3</summary>'
        hint = f'<div style="margin:4px 0">{_prose(verdict.exercise.hints[step - 1])}</div>{inner}'
        inner = f'<details style="margin:4px 0">{button}{hint}</details>'
    return inner


def _again(verdict: Result) -> str:
    if verdict.gate == "implemented":
        return ""
    exercise, sizes = verdict.exercise, ", hidden=True" if verdict.hidden else ""
    call = f'grading.check("{exercise.id}", {exercise.symbol}, seed={verdict.seed}{sizes})'
    return _fold("the same data again", f"<code>{html.escape(call)}</code>")


def _fold(title: str, body: str) -> str:
    return f'<details><summary style="cursor:pointer">{title}</summary>{body}</details>'


def badge(sign: str, color: str) -> str:
    """Return a sign on a ground of its colour: it reads on any theme."""
    style = f"background:{color};color:#fff;border-radius:3px;padding:0 5px;font-weight:bold"
    return f'<span style="{style}">{sign}</span>'


def _sentence(text: str, where: str = "") -> str:
    end = "" if text.endswith(("?", "!")) else "."
    return f"{_prose(text.rstrip('.'))}{where}{end}"


def _prose(text: str) -> str:
    """Escape a sentence; names in backticks become code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", html.escape(text, quote=False)).replace("\n", "<br>")


def _points(points: float) -> str:
    return f"{points:g} point{'s' * (points != 1)}"
