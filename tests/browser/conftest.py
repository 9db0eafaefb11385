"""One browser for all tests; `--lab 03`, `--lab "00 03"` or `--lab all` says which labs are opened."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "staff"))
from jupyter_page import browser

ROOT = Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lab", default="00", help='which labs run from top to bottom: "03" or "all"')


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "lab_name" in metafunc.fixturenames:
        wanted = str(metafunc.config.getoption("--lab")).replace(",", " ").split()
        names = sorted(path.name for path in (ROOT / "notebooks").iterdir() if path.is_dir())
        numbers = {name.split("_")[0] for name in names}
        if wanted != ["all"] and not {name.zfill(2) for name in wanted} <= numbers:
            raise pytest.UsageError(f"--lab must be all or of {', '.join(sorted(numbers))}; got {wanted}.")
        chosen = [n for n in names if wanted == ["all"] or n.split("_")[0] in [w.zfill(2) for w in wanted]]
        metafunc.parametrize("lab_name", chosen, scope="module")


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
