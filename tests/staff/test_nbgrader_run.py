"""nbgrader's own way of running a submission has the course's kernels and its limit."""

from __future__ import annotations

from pathlib import Path

import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.kernels import NotebookStopped, PrivateKernel
from course_lib.staff.gradebook import LimitedExecute, course_config

OF_ANN = {"metadata": {"name": "03_data_parallel", "path": ""}, "nbgrader": {"student": "ann"}}


def test_nbgraders_configuration_names_it(tmp_path: Path) -> None:
    config = course_config(tmp_path)
    steps = (
        config.Autograde.autograde_preprocessors,
        config.GenerateSolution.preprocessors,
        config.Validator.preprocessors,
    )
    assert [[step.__name__ for step in one if "Execute" in step.__name__] for one in steps] == [
        ["LimitedExecute"]
    ] * 3


def test_a_submission_runs_in_a_private_kernel_and_goes_on_after_an_error(tmp_path: Path) -> None:
    notebook = new_notebook(cells=[new_code_cell("1 / 0"), new_code_cell("print(2)")])
    run = LimitedExecute(config=course_config(tmp_path))
    assert run.kernel_manager_class is PrivateKernel
    run.preprocess(notebook, OF_ANN)
    assert notebook.cells[0].outputs[0].ename == "ZeroDivisionError"
    assert notebook.cells[1].outputs[0].text == "2\n"


def test_a_limit_names_the_student(tmp_path: Path) -> None:
    config = course_config(tmp_path)
    config.LimitedRun.limit_s = 0.0
    with pytest.raises(NotebookStopped, match="03_data_parallel of ann must be run within 0 s"):
        LimitedExecute(config=config).preprocess(new_notebook(), OF_ANN)
