"""Settings of all tests, and what becomes of those that need a program which is not there."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import date

import cloudpickle
import pytest
import torch

from course_lib import doctor

torch.set_num_threads(1)  # oracles are small: threads would wait for each other on cores that ranks need
WITHOUT = "this machine is without "
# Whole notebooks and classes take two thirds of the time: a third of them a day. Workers inherit the day.
DAY, THIRDS = "COURSE_TEST_DAY", 3
# A file is one worker's: the longest first, or the last worker is alone with one of them.
LONGEST = (
    "tests/staff/test_contract.py",
    "tests/staff/test_matrix.py",
    "tests/test_zoo.py",
    "tests/ranks/test_launch.py",
    "tests/simulate/test_extend.py",
    "tests/staff/test_resume.py",
    "tests/ranks/test_hangs.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Rotate where all files are run; not in CI, with ALL=1, or where somebody names what to run."""
    everything = os.environ.get("CI") == "true" or os.environ.get("ALL") or config.option.file_or_dir
    if not everything and not hasattr(config, "workerinput"):
        os.environ.setdefault(DAY, str(date.today().toordinal()))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; leave out what waits for another day."""
    place = {name: n for n, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(LONGEST)))
    if DAY in os.environ:
        waiting = set(_waiting(items, int(os.environ[DAY])))
        items[:] = [item for item in items if item not in waiting]
        config.hook.pytest_deselected(items=list(waiting))


def _waiting(items: list[pytest.Item], day: int) -> Iterator[pytest.Item]:
    """Yield marked tests whose turn is another day: that of their file, their parameters or their place."""
    for place, item in enumerate(items):
        mark = item.get_closest_marker("rotates")
        if mark is not None and isinstance(item, pytest.Function):
            cases = getattr(item, "callspec", None)
            turn = sum(cases.indices.values()) if cases else place  # all tests of a lab on one day
            if ((mark.args[0] if mark.args else turn) + day) % THIRDS != 0:
                yield item


def pytest_collection_finish(session: pytest.Session) -> None:
    """Send test functions to ranks by value: importing the test module there would cost more."""
    for name in {item.module.__name__ for item in session.items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(sys.modules[name])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose programs are not all there; in CI they must be."""
    wanted = [name for mark in item.iter_markers("needs") for name in mark.args]
    lacks = [name for name in wanted if doctor.PROGRAMS[name].problem]
    if lacks and os.environ.get("CI") == "true":
        pytest.fail(f"in CI no test may lack a program. {doctor.missing_programs()}", pytrace=False)
    if lacks:
        pytest.skip(WITHOUT + " and ".join(lacks))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what waits for another day, how many tests lacked which program, and what installs it."""
    if DAY in os.environ:
        terminalreporter.line(
            "A third of the tests of whole notebooks and classes ran, another third tomorrow. "
            "`make test ALL=1` runs all of them, as CI does; so does pytest with a file's name."
        )
    reasons = [str(report.longrepr[-1]) for report in terminalreporter.getreports("skipped")]
    lacks = Counter(reason.partition(WITHOUT)[2] for reason in reasons if WITHOUT in reason)
    if lacks:
        terminalreporter.section(f"{lacks.total()} tests were skipped for want of a program")
        for names, number in lacks.items():
            terminalreporter.line(f"{number} need {names}")
        terminalreporter.line(doctor.missing_programs())
