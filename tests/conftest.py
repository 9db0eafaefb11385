"""Settings of all tests."""

import sys

import cloudpickle
import pytest
import torch

torch.set_num_threads(1)  # oracles are small: threads would wait for each other on cores that ranks need


def pytest_collection_finish(session: pytest.Session) -> None:
    """Send test functions to ranks by value: importing the test module there would cost more."""
    for name in {item.module.__name__ for item in session.items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(sys.modules[name])
