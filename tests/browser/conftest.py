"""One browser for all tests; `--lab 03` or `--lab all` says which labs are opened."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from jupyter_page import browser

ROOT = Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lab", default="00", help='which labs run from top to bottom: "03" or "all"')


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lab_name" in metafunc.fixturenames:
        wanted = str(metafunc.config.getoption("--lab"))
        names = sorted(path.name for path in (ROOT / "notebooks").iterdir() if path.is_dir())
        chosen = [name for name in names if wanted == "all" or name.split("_")[0] == wanted.zfill(2)]
        if not chosen:
            raise pytest.UsageError(f"--lab must be all or one of {', '.join(names)}; got {wanted!r}.")
        metafunc.parametrize("lab_name", chosen)


@pytest.fixture(scope="session")
def chromium() -> Iterator[object]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="session")
def pictures() -> Path:
    """Where screenshots are kept for those who want to look at them."""
    folder = ROOT / "build" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
