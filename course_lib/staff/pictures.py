"""How large a picture is, read from its first bytes: a page must not make a browser unpack gigabytes.

A PNG of 10,000 by 10,000 pixels can have 15 kB and takes 400 MB where it is shown.
"""

from __future__ import annotations

import base64
import binascii
import struct

SIZED = ("image/png", "image/jpeg")
MAX_SIDE = 4_000  # pixels; what `page_kernel` draws has at most half of that
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # JPEG's markers of a frame, which has the size


def too_large(mime: str, text: str) -> str:
    """Return why a page does not show a PNG or JPEG given in base64, in a sentence; "" if it can."""
    size = pixels(mime, text)
    if size is None:
        return f"Not shown: it must be a picture, as its type {mime} says."
    if max(size) <= MAX_SIDE:
        return ""
    return f"Not shown: a picture of {size[0]:,} x {size[1]:,} pixels; a page holds {MAX_SIDE:,} a side."


def pixels(mime: str, text: str) -> tuple[int, int] | None:
    """Return width and height, None if that is no picture of this type."""
    try:
        data = base64.b64decode(text)
        if mime == "image/png" and data.startswith(_PNG):
            width, height = struct.unpack(">II", data[16:24])
            return width, height
        return _of_jpeg(data) if mime == "image/jpeg" and data.startswith(_JPEG) else None
    except (binascii.Error, struct.error, ValueError):
        return None


def _of_jpeg(data: bytes) -> tuple[int, int] | None:
    place = 2
    while place + 9 <= len(data) and data[place] == 0xFF:
        marker, length = struct.unpack(">xBH", data[place : place + 4])
        if marker in _SIZES:
            height, width = struct.unpack(">HH", data[place + 5 : place + 9])
            return width, height
        place += 2 + length
    return None
