"""`course address`: say once where the course is published; badges and links lead there from then on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console

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


def command(root: Path, address: str, console: Console) -> int:
    """Set the address, then make the cells that hold it again; return the exit status."""
    write(root, address)
    # In a new process: this one has read the old address.
    build = [sys.executable, "-m", "course_lib.cli", "build", "--keep-outputs"]
    status = subprocess.call(build, cwd=root)
    if status == 0:
        console.print(
            f"Badges and links lead to {plain(address)} now. "
            "Commit, tag the commit v<version>, push it with its tag",
            highlight=False,
            soft_wrap=True,
        )
    return status
