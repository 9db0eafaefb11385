"""Which frames are the student's: machinery stays out of sites and tracebacks."""

from pathlib import Path

import pytest

import course_lib
from course_lib.parallel.fsdp import FSDP
from course_lib.trace.calls import is_machinery, is_student_code

PACKAGE = Path(course_lib.__file__).parent


@pytest.mark.parametrize(
    "name",
    [
        "trace/intercept.py",
        "ranks/rank.py",
        "comm/collectives.py",
        "parallel/_sharded.py",
        "parallel/fsdp/_units.py",
    ],
)
def test_machinery_is_not_student_code(name: str) -> None:
    assert (PACKAGE / name).is_file()
    assert is_machinery(str(PACKAGE / name))
    assert not is_student_code(str(PACKAGE / name))


@pytest.mark.parametrize(
    "name",
    ["parallel/ddp/engine.py", "parallel/fsdp/__init__.py", "parallel/fsdp/engine.py", "replay/__init__.py"],
)
def test_what_a_student_calls_is_named(name: str) -> None:
    assert (PACKAGE / name).is_file()
    assert is_student_code(str(PACKAGE / name))


def test_a_students_own_file_may_have_such_a_name() -> None:
    assert not is_machinery("/home/somebody/trace/_mine.py")
    assert is_student_code(FSDP.__init__.__code__.co_filename)
