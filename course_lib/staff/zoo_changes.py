"""Answers of the zoo that are another one with a line changed: `# from: <answer>`, `# change: old -> new`.

Without `# from:` it is the reference that is changed. All changes of an answer are made in one pass, so that
two texts can change places. A text that does not occur is an error: the answer it was taken from has changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_FROM = re.compile(r"^# from:\s*(.+?)\s*$", re.M)
_CHANGE = re.compile(r"^# change: (.+?) ->(?: (.*))?$", re.M)


def source_of(body: str) -> str:
    """The name of the answer that a cell changes, "" if it stands by itself."""
    named = _FROM.search(body)
    return named.group(1) if named else "reference" if _CHANGE.search(body) else ""


def changed(body: str, source: Callable[[str], str]) -> str:
    """Return the cell of an answer, with its changes made. source: name of an answer -> its cell.

    Raises: ValueError if a text to be changed does not occur, or none is given.
    """
    name = source_of(body)
    if not name:
        return body
    text, changes = source(name), {old: new or "" for old, new in _CHANGE.findall(body)}
    missing = [old for old in changes if old not in text]
    if missing or not changes:
        raise ValueError(
            f"each `# change: old -> new` must name a text of {name!r}; it has no {missing[:1]}. Copy it "
            f"from there."
        )
    pattern = "|".join(re.escape(old) for old in sorted(changes, key=len, reverse=True))
    notes = "\n".join(line for line in body.splitlines() if line.startswith("# says:"))
    return f"{notes}\n" + re.sub(pattern, lambda match: changes[match.group()], text)
