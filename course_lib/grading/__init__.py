"""Checks and diagnoses the notebooks call: `grading.check("<id>", answer)`, `grading.hint("<id>")`.

Names are loaded when used: ranks import this package too, and must not meet an oracle by doing so.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from course_lib.ranks.forkserver import preload

if TYPE_CHECKING:
    from course_lib.grading.exercise import Exercise as Exercise
    from course_lib.grading.exercise import Result as Result
    from course_lib.grading.facade import check as check
    from course_lib.grading.facade import score as score
    from course_lib.grading.progress_table import progress_map as progress_map
    from course_lib.grading.registry import exercises as exercises
    from course_lib.grading.registry import get as get
    from course_lib.grading.report import card as card
    from course_lib.grading.report import hint as hint
    from course_lib.grading.source import FromObject as FromObject
    from course_lib.grading.source import FromSource as FromSource
    from course_lib.grading.stub_errors import answer_or as answer_or

_HOMES = {
    "check": "facade",
    "score": "facade",
    "Exercise": "exercise",
    "Result": "exercise",
    "card": "report",
    "hint": "report",
    "progress_map": "progress_table",
    "answer_or": "stub_errors",
    "exercises": "registry",
    "get": "registry",
    "FromObject": "source",
    "FromSource": "source",
}
__all__ = sorted(_HOMES)

preload("course_lib.grading.rank_preload")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"course_lib.grading has {__all__}; got {name!r}.")
    return getattr(importlib.import_module(f"course_lib.grading.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
