"""What a command of `course` needs: a checkout, and packages that only some commands use."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def checkout() -> Path:
    """Return the repository's root: the folder at or above the current one that holds the labs."""
    for folder in [Path.cwd(), *Path.cwd().parents]:
        labs = any((folder / name).is_dir() for name in ("solutions", "notebooks"))
        if labs and (folder / "pyproject.toml").exists():
            return folder
    raise ValueError(
        f"this command works in a checkout of the course; got {Path.cwd()}. "
        "clone the repository and change into it"
    )


def need(module: str, extra: str) -> None:
    """Raise ModuleNotFoundError that names the extra, where a module is not installed."""
    if importlib.util.find_spec(module) is None:
        raise ModuleNotFoundError(
            f"this command needs {module}; it is not installed. "
            f"run `make setup`, or `pip install -e '.[{extra}]'`"
        )


def need_staff() -> None:
    """Everything the instructor's commands are made of."""
    need("nbgrader", "course")
    for module in ("jupytext", "nbclient", "nbconvert", "bleach", "joblib", "copydetect"):
        need(module, "staff")
