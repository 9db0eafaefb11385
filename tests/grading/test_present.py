"""Cards and hints come from the declaration; hints never hold the solution."""

import pytest

from course_lib import grading
from course_lib.grading.closed import Guard
from course_lib.grading.present import hint


def test_hints_come_in_three_steps(capsys):
    for step in (1, 2, 3):
        hint("rank_hello", step)
    out = capsys.readouterr().out
    assert "Hint 1 of 3" in out
    assert "grading.hint('rank_hello', 3)" in out
    with pytest.raises(ValueError, match="1, 2 or 3"):
        hint("rank_hello", 4)


@pytest.mark.parametrize("exercise", grading.exercises(), ids=lambda e: e.id)
def test_declaration_is_complete(exercise):
    text = grading.card(exercise)
    assert exercise.numeric or all(f"{name} " in text for name in exercise.points)
    sentences = [exercise.graded] if isinstance(exercise.graded, str) else exercise.graded.values()
    assert exercise.numeric or all(sentence in text for sentence in sentences)
    assert 1 <= exercise.minutes <= 30
    assert 1 <= exercise.difficulty <= 5
    assert 1 <= exercise.importance <= 5
    assert len(exercise.hints) == 3
    assert all(len(text) > 20 and f"def {exercise.symbol}" not in text for text in exercise.hints)
    assert exercise.max_score > 0
    Guard(exercise.id, exercise.closed)  # every closed entry exists


def test_exercises_of_a_lab_in_order():
    assert grading.exercises("00")[0].id == "rank_hello"
    assert grading.exercises("00") == grading.exercises("00_start_here")
    assert grading.exercises("99") == []
