"""The map of labs and exercises with a learner's verdicts: a table in a notebook, lines in a terminal.

A verdict is a sign and words, so that nothing hangs on colour.
"""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

from course_grader.exercise import Exercise
from course_grader.registry import exercises
from course_grader.show import progress
from course_grader.show.report_card import BAD, GOOD, LOST, NOT_TRIED, OK

_GRADED_SIZES = "(graded sizes)"
_NOTE = f"{_GRADED_SIZES}: this was checked with the hidden sizes that count, not those of the open check."
_CELL = "text-align:left;vertical-align:top"


class ProgressMap:
    """The verdicts of a lab's exercises, or of all; shown as a cell's value."""

    def __init__(self, labs: dict[str, list[Exercise]], entries: dict[str, dict[str, Any]]) -> None:
        self.labs, self.entries = labs, entries

    def lines(self) -> list[str]:
        """Return the map as text."""
        return [line for lab in self.labs for line in self._lab_lines(lab)]

    def points(self, lab: str, *, bonus: bool = False) -> tuple[float, float]:
        """Return the points reached and the full mark of a lab, without its bonus or of it alone."""
        known = [exercise for exercise in self.labs[lab] if exercise.bonus == bonus]
        got = sum(self.entries.get(exercise.id, {}).get("score", 0.0) for exercise in known)
        return got, sum(exercise.max_score for exercise in known)

    def _sum(self, lab: str) -> str:
        (got, most), (more, _) = self.points(lab), self.points(lab, bonus=True)
        return f"{got:g} of {most:g} points" + (f", bonus {more:g}" if more else "")

    def _note(self, lab: str) -> str:
        shown = [self._words(exercise) for exercise in self.labs[lab]]
        return _NOTE if any(_GRADED_SIZES in words for words in shown) else ""

    def _lab_lines(self, lab: str) -> list[str]:
        width = max(len(exercise.id) for exercise in self.labs[lab])
        rows = [f"  {self._sign(e)} {e.id:<{width}}  {self._words(e)}" for e in self.labs[lab]]
        return [f"{lab}  {self._sum(lab)}", *rows, *([f"  {self._note(lab)}"] if self._note(lab) else [])]

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
        return "  ".join([*parts, _GRADED_SIZES if entry["full"] else ""]).strip()

    def _repr_html_(self) -> str:
        return "".join(self._lab_html(lab) for lab in self.labs)

    def _lab_html(self, lab: str) -> str:
        rows = [
            f'<tr><td style="{_CELL}">{self._colored(self._sign(e))}</td>'
            f'<td style="{_CELL}"><code>{html.escape(e.id)}</code></td>'
            f'<td style="{_CELL}">{html.escape(e.title)}</td>'
            f'<td style="{_CELL}">{self._colored(self._words(e))}</td></tr>'
            for e in self.labs[lab]
        ]
        style = "text-align:left;padding:6px 0"
        head = f'<caption style="{style}"><b>{lab}</b>: {self._sum(lab)}</caption>'
        note = f"<p>{self._note(lab)}</p>" if self._note(lab) else ""
        return f"<table>{head}{''.join(rows)}</table>{note}"

    @staticmethod
    def _colored(words: str) -> str:
        text = html.escape(words)
        for gap in (f"{OK} ", f"{LOST} "):  # a line breaks between parts, not inside of one
            text = text.replace(gap, gap.replace(" ", "&nbsp;"))
        for sign, color in ((OK, GOOD), (LOST, BAD)):
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
