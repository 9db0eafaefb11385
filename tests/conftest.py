"""Settings of all tests."""

import sys

import cloudpickle
import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """Send test functions to ranks by value: importing the test module there would cost more."""
    for name in {item.module.__name__ for item in session.items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(sys.modules[name])
