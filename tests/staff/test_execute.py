"""What an executed solution notebook may hold."""

from __future__ import annotations

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_grader.authoring.execute import executed
from course_grader.authoring.source import BuildError


def notebook(*sources: str) -> nbformat.NotebookNode:
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def test_outputs_are_kept_and_addresses_are_not() -> None:
    ran = executed(notebook("print(6 * 7)", "print('<object at 0x7f00deadbeef>')"), "lab.py")
    assert ran.cells[0].outputs[0].text == "42\n"
    assert ran.cells[1].outputs[0].text == "<object at 0x...>\n"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; sys.stderr.write('noise')", "output on stderr: 'noise'"),
        ("print('UserWarning: careful')", "a warning"),
        ("import os; print(os.getcwd())", "a path of this machine"),
        ("import sys; print(sys.prefix)", "a path of this machine"),
    ],
)
def test_what_a_reader_should_not_see_stops_the_build(source: str, says: str) -> None:
    with pytest.raises(BuildError) as caught:
        executed(notebook("x = 1", source), "lab.py")
    assert says in str(caught.value)
    assert "lab.py, cell 2" in str(caught.value)
