"""Asking an answer at many points: what it keeps between calls, or changes, shows."""

from __future__ import annotations

from typing import Any

import pytest

from course_grader.exercise import GateFailed
from course_grader.inside.pointwise import answers_at
from course_grader.why import Why

POINTS = [
    {"spec": {"name": name, "a": a, "b": [1, {"name": "inner", "c": 2.0}]}, "n": n}
    for name, a, n in (("x", 3, 1), ("y", 4, 2), ("x", 5, 3))
]


def test_a_function_of_its_arguments_answers() -> None:
    assert answers_at(lambda p: p["spec"]["a"] * p["n"], POINTS) == [3, 8, 15]


def test_names_below_an_argument_stay() -> None:
    assert answers_at(lambda p: p["spec"]["b"][1]["name"], POINTS) == ["inner"] * 3


def test_points_may_be_lists() -> None:
    assert answers_at(lambda p: sum(p), [[1, 2], [3, 4]]) == [3, 7]


def test_not_a_number_is_the_same_again() -> None:
    assert len(answers_at(lambda _: float("nan"), POINTS)) == 3


@pytest.mark.parametrize("by", ["id", "name", "calls", "order"])
def test_what_does_not_come_from_the_numbers_is_refused(by: str) -> None:
    seen: dict[Any, Any] = {}

    def ask(point: dict[str, Any]) -> Any:
        spec = point["spec"]
        if by == "order":
            return next(iter(spec.values()))
        key = {"id": id(spec), "name": spec["name"], "calls": "last"}[by]
        result = seen.setdefault(key, spec["a"])
        if by == "calls":
            seen[key] = spec["a"]
        return result

    with pytest.raises(GateFailed, match="same result in every call") as refused:
        answers_at(ask, POINTS)
    assert refused.value.gate == "values"


def test_an_argument_that_a_call_changed_is_named() -> None:
    def ask(point: dict[str, Any]) -> int:
        point["spec"]["a"] *= 2
        return int(point["spec"]["a"])

    with pytest.raises(GateFailed, match="argument 'spec' must stay as it was") as refused:
        answers_at(ask, POINTS)
    assert refused.value.gate == "inputs"
    assert "dict(spec)" in str(refused.value)


def test_of_a_list_that_a_call_changed_a_list_is_advised() -> None:
    def ask(point: dict[str, Any]) -> int:
        point["sizes"].clear()
        return 0

    with pytest.raises(GateFailed, match=r"list\(sizes\)"):
        answers_at(ask, [{"sizes": [1, 2]}])


def test_an_answer_that_finds_nothing_at_some_points_is_written() -> None:
    def ask(point: dict[str, Any]) -> Any:
        if point["n"] > most:
            raise GateFailed("implemented", Why("not written yet"))
        return point["n"]

    most = 2
    assert answers_at(ask, POINTS) == [1, 2, None]
    most = 0
    with pytest.raises(GateFailed, match="not written yet"):
        answers_at(ask, POINTS)


def test_an_order_that_depends_on_the_keys_is_refused_unless_any_will_do() -> None:
    points = [{"place": {"a": 0, "b": 1}}]

    def ask(point: dict[str, Any]) -> list[list[str]]:
        return [[key] for key in point["place"]]

    assert answers_at(ask, points, any_order=True) == [[["a"], ["b"]]]
    with pytest.raises(GateFailed, match="not by their order"):
        answers_at(ask, points)
