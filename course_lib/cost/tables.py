"""Read the cited tables that travel with the library in `data/`."""

from __future__ import annotations

import csv
from functools import cache

from course_lib.data_files import data_path


@cache
def rows(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a table of `data/`, each a dict from column to text; lines that start with # are
    skipped."""
    lines = data_path(name).read_text(encoding="utf-8").splitlines()
    return tuple(csv.DictReader(line for line in lines if not line.startswith("#")))
