"""A `Why` as a line, for the terminal, the page and the tables; `report_card` lays out the same fields."""

from __future__ import annotations

from course_grader.why import Why

_ENDS = (".", "?", "!", ":")


def line(why: Why) -> str:
    """Return "At CASE: what must hold; what was seen. Advice." and, below, the report."""
    head = f"{why.must}; {why.got}." if why.got else why.must
    if (why.advice or why.point) and not head.endswith(_ENDS):
        head += "."
    at = f"At {why.case}: " if why.case else ""
    first = " ".join(filter(None, (f"{at}{head}", why.advice, why.point)))
    return f"{first}\n{why.report}" if why.report else first


def first_line(why: Why) -> str:
    """Return what is said in one line, without the case: equal mistakes in other cases give equal words."""
    head, *_ = line(Why(why.must, why.got, why.advice, point=why.point)).split("\n")
    return head
