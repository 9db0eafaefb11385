"""Read the cited tables that travel with the library (top-level `data/` in a checkout, `course_lib/data/` in
a wheel)."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def data_path(name: str) -> Path:
    """Return where a file of `data/` lies.

    Raises: FileNotFoundError if it is in neither place.
    """
    for folder in (PACKAGE / "data", PACKAGE.parent / "data"):
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(
        f"data/{name} must lie beside or inside {PACKAGE}; got neither. "
        "Install the course again: pip install -e ."
    )


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a table of `data/`, each a dict from column to text; lines that start with # are
    skipped."""
    lines = data_path(name).read_text(encoding="utf-8").splitlines()
    return tuple(csv.DictReader(line for line in lines if not line.startswith("#")))
