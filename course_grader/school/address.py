"""`course address`: say once where the course is published; badges and links lead there from then on."""

from __future__ import annotations

import re
from pathlib import Path

_ADDRESS = re.compile(r"https://github\.com/[\w.-]+/[\w.-]+")
_LINE = re.compile(r'^REPOSITORY = "[^"\n]*"$', re.MULTILINE)


def plain(address: str) -> str:
    """Return an address as it is kept: without `.git` and a slash at its end.

    Raises: ValueError for anything but a repository on GitHub, which Colab opens notebooks from.
    """
    found = address.strip().removesuffix("/").removesuffix(".git")
    if not _ADDRESS.fullmatch(found) or "/your_organisation/" in found:
        raise ValueError(
            f"the address must be https://github.com/OWNER/NAME, which Colab can open; got {address!r}. "
            "copy it from your browser"
        )
    return found


def write(root: Path, address: str) -> None:
    """Set `REPOSITORY` in course_lib/__init__.py."""
    line = f'REPOSITORY = "{plain(address)}"'
    path = root / "course_lib" / "__init__.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(_LINE.sub(line, text), encoding="utf-8")
