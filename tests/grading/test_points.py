"""Formulas judged at many points: names the mistake that explains all answers, and no other."""

from course_grader.parts.points import Formula, judge
from course_grader.show.text import line

DOUBLE = Formula(
    want=lambda p: 2 * p["x"], mistakes=lambda p: {"x is squared": p["x"] ** 2, "x is kept": p["x"]}
)
POINTS = [{"x": x} for x in (2, 3, 5)]


def part(answers, formula=DOUBLE):
    return judge("double", formula, list(zip(POINTS, answers, strict=True)), str)


def test_right_answers_pass_within_the_tolerance() -> None:
    assert part([4, 6.001, 10]).ok
    assert not part([4, 6.1, 10]).ok


def test_what_floats_leave_over_is_nought() -> None:
    nought = Formula(want=lambda _: 0.0)
    assert part([0, -2.2e-16, 1.3e-15], nought).ok
    assert not part([0, 8e-6, 0], nought).ok


def test_the_mistake_must_explain_every_answer() -> None:
    message = line(part([4, 9, 25]).why)
    assert "x is squared" in message
    assert "Wrong at 2 of 3" in message
    assert "This is what you get" not in line(part([4, 9, 10]).why)


def test_what_is_no_number_is_said() -> None:
    for got in (None, True, "4", float("nan"), [4]):
        assert "must be a number" in line(part([4, got, 10]).why)


def test_words_are_compared_exactly() -> None:
    formula = Formula(want=lambda p: "big" if p["x"] > 2 else "small")
    assert part(["small", "big", "big"], formula).ok
    assert not part(["small", "Big", "big"], formula).ok
    assert "must be a text" in line(part(["small", 1, "big"], formula).why)


def test_numbers_that_differ_look_different() -> None:
    exact = Formula(want=lambda _: 9_548_734_464.0, rel=1e-12)
    message = line(part([9_548_734_000.0] * 3, exact).why)
    assert "must be 9,548,734,464; got 9,548,734,000." in message
