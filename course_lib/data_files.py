"""Where the small inputs of `data/` lie: top-level in a checkout, `course_lib/data/` in a wheel."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


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
