"""What people type into files: characters in one encoding, times that can be only one.

nbgrader's own reader of times takes "+0900" for 900 seconds, and leaves out "PM" and "KST".
"""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

_TIME = re.compile(
    r"(?P<at>[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?) ?"
    r"(?P<zone>Z|UTC|GMT|[+-][0-9]{2}(:?[0-9]{2})?|[A-Z][A-Za-z_]+(/[A-Z][A-Za-z_-]+)+)"
)
EXAMPLES = "'2027-01-16 18:30+09:00', '2027-01-16 09:30 UTC' or '2027-01-16 18:30 Asia/Seoul'"


def text_of(data: bytes) -> str:
    """Return the text of a file in UTF-8, UTF-16 or UTF-32, with a mark before it or not.

    Raises: ValueError that says what to do.
    """
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode(json.detect_encoding(data[:4]).removesuffix("-sig"))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ValueError(
            f"its text must be UTF-8; line {line} is in a code page of Windows's, cp949 or cp1252 say. "
            "Save it as UTF-8"
        ) from error


def one_spelling(text: str) -> str:
    """Return the one form (Unicode's NFC) of a text: macOS writes "é" as two characters."""
    return unicodedata.normalize("NFC", text)


def time_of(text: str) -> datetime:
    """Return the time that a text names, in UTC and without a zone, as nbgrader keeps it.

    Read are a day, a time of 24 hours, and an offset, UTC or the IANA name of a zone, whose clock must have
    shown that time once.

    Raises: ValueError for all else: nothing is guessed.
    """
    why = f"a time must be like {EXAMPLES}; got {text[:50]!r}"
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(why)
    try:
        zone = match["zone"]
        if "/" in zone:
            at = datetime.fromisoformat(match["at"]).replace(tzinfo=ZoneInfo(zone))
        else:
            at = datetime.fromisoformat(match["at"] + (zone if zone[0] in "+-" else "Z"))
        found = at.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, KeyError, OSError, OverflowError) as error:  # no such day, zone or year
        raise ValueError(why) from error
    if at.utcoffset() != at.replace(fold=1).utcoffset():
        raise ValueError(f"{why}, which the clocks there showed twice or never. Write an offset")
    return found
