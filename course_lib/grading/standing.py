"""The map of labs and exercises with a learner's verdicts: a table in a notebook, lines in a terminal.

A verdict is a sign and words, so that nothing hangs on colour.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from course_lib.grading import progress
from course_lib.grading.exercise import Exercise
from course_lib.grading.registry import exercises

OK, LOST, NOT_TRIED = "✓", "✗", "·"
_GOOD, _BAD = "#009E73", "#D55E00"
_CELL = "text-align:left;vertical-align:top"


class ProgressMap:
    """The verdicts of a lab's exercises, or of all; shown as a cell's value."""

    def __init__(self, labs: dict[str, list[Exercise]], entries: dict[str, dict[str, Any]]) -> None:
        self.labs, self.entries = labs, entries

    def lines(self) -> list[str]:
        """Return the map as text."""
        return [line for lab in self.labs for line in self._lab_lines(lab)]

    def points(self, lab: str) -> tuple[float, float]:
        """Return the points reached and the full mark of a lab, the latter without its bonus."""
        known = self.labs[lab]
        got = sum(self.entries.get(exercise.id, {}).get("score", 0.0) for exercise in known)
        return got, sum(exercise.max_score for exercise in known if not exercise.bonus)

    def _lab_lines(self, lab: str) -> list[str]:
        got, most = self.points(lab)
        width = max(len(exercise.id) for exercise in self.labs[lab])
        rows = [f"  {self._sign(e)} {e.id:<{width}}  {self._words(e)}" for e in self.labs[lab]]
        return [f"{lab}  {got:g} of {most:g} points", *rows]

    def _sign(self, exercise: Exercise) -> str:
        entry = self.entries.get(exercise.id)
        if entry is None or entry["gate"] == "implemented":
            return NOT_TRIED
        return OK if all(got >= most for got, most in entry["parts"].values()) else LOST

    def _words(self, exercise: Exercise) -> str:
        if self._sign(exercise) == NOT_TRIED:
            return f"not tried yet, {exercise.minutes} min"
        entry = self.entries[exercise.id]
        if entry["gate"]:
            return f"{LOST} {entry['gate']}: no points yet"
        parts = [
            f"{OK if got >= most else LOST} {name} {got:g}/{most:g}" for name, (got, most) in _parts(entry)
        ]
        return "  ".join([*parts, "(sizes of the grade)" if entry["full"] else ""]).strip()

    def _repr_html_(self) -> str:
        return "".join(self._lab_html(lab) for lab in self.labs)

    def _lab_html(self, lab: str) -> str:
        got, most = self.points(lab)
        rows = [
            f'<tr><td style="{_CELL}">{self._colored(self._sign(e))}</td>'
            f'<td style="{_CELL}"><code>{html.escape(e.id)}</code></td>'
            f'<td style="{_CELL}">{html.escape(e.title)}</td>'
            f'<td style="{_CELL}">{self._colored(self._words(e))}</td></tr>'
            for e in self.labs[lab]
        ]
        style = "text-align:left;padding:6px 0"
        head = f'<caption style="{style}"><b>{lab}</b>: {got:g} of {most:g} points</caption>'
        return f"<table>{head}{''.join(rows)}</table>"

    @staticmethod
    def _colored(words: str) -> str:
        text = html.escape(words)
        for gap in (f"{OK} ", f"{LOST} "):  # a line breaks between parts, not inside of one
            text = text.replace(gap, gap.replace(" ", "&nbsp;"))
        for sign, color in ((OK, _GOOD), (LOST, _BAD)):
            text = text.replace(sign, f'<b style="color:{color}">{sign}</b>')
        return text

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def _parts(entry: dict[str, Any]) -> list[tuple[str, tuple[float, float]]]:
    return list(entry["parts"].items())


def progress_map(lab: str | None = None, start: Path | None = None) -> ProgressMap:
    """Return the map of `lab` ("03" or "03_data_parallel"), or of the whole course.

    Raises: ValueError for a lab that does not exist.
    """
    found = exercises(lab)
    if not found:
        known = sorted({exercise.lab for exercise in exercises()})
        raise ValueError(f"a lab must be one of {', '.join(known)}; got {lab!r}. Name one of them.")
    labs: dict[str, list[Exercise]] = {}
    for exercise in found:
        labs.setdefault(exercise.lab, []).append(exercise)
    return ProgressMap(labs, progress.read_or_rescue(progress.folder(start)))
