"""Pictures in a student's text: each is shown on a page, or named with the reason why not.

How large one is, is in its first bytes: a page must not make a browser unpack gigabytes. A PNG of 10,000
by 10,000 pixels can have 15 kB and takes 400 MB where it is shown.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
import struct
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from bs4 import BeautifulSoup

from course_grader.authoring.filled_release import storable
from course_grader.typed import one_spelling

KINDS = {"image/png": "png", "image/jpeg": "jpg", "image/svg+xml": "svg"}  # a page shows them as <img>
MAX_CHARACTERS = 2_000_000  # of a picture in base64
MAX_MARKDOWN = 10_000  # characters of a cell: longer ones are shown as they were written
SIZED = ("image/png", "image/jpeg")
MAX_SIDE = 4_000  # pixels; what `page_kernel` draws has at most half of that
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]*")
_PLAIN = re.compile(
    r"(?!picture-)[A-Za-z0-9_.-]+"
)  # names that mean the same in markdown, in a URL and in nbconvert
_DATA = re.compile(r"data:(image/[a-z+]{1,20});base64,([A-Za-z0-9+/=]+)")
_TAG = re.compile(r"<img\b[^<>]{0,2000}>", re.IGNORECASE)
_PICTURE = re.compile(
    r"!\[(?P<alt>[^\]\n]{0,200})\]"
    r"\([ \t]*(?:<(?P<angled>[^<>\n]{1,1000})>|(?P<to>(?:[^()\n\"]|\([^()\n]{0,1000}\)){1,1000}?))"
    r"(?:[ \t]+[\"'][^\n]{0,1000}?[\"'])?[ \t]*\)"
)
_REFERENCE = re.compile(r"^( {0,3}\[[^\]\n]{1,200}\]:[ \t]*)<?attachment:([^\s<>]{1,1000})>?", re.MULTILINE)
_PNG, _JPEG = b"\x89PNG\r\n\x1a\n", b"\xff\xd8"
_SIZES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # JPEG's markers of a frame, which has the size


def in_text(source: str, attachments: Any, folder: Path | None) -> tuple[str, dict[str, dict[str, str]]]:
    """Return a text and its attachments: pictures that a page can show are attached, the others named.

    Pictures come as attachments, as data in the text, and as files in `folder`, by markdown or by an <img>.
    Attachments get names that need no quoting: nbconvert finds no others.
    """
    kept: dict[str, dict[str, str]] = {}
    left: dict[str, str] = {}
    names: dict[str, str] = {}  # of what is kept, by the names in the text

    def keep(name: str, mime: str, data: str) -> None:
        name, mime = storable(name), mime.replace("jpg", "jpeg")
        if why := _not_shown(mime, data):
            left[name] = why
            return
        plain = name if _PLAIN.fullmatch(name) else f"picture-{len(names) + 1}.{KINDS[mime]}"
        kept[plain] = {mime: data}
        names[one_spelling(name)] = plain

    def of_data(match: re.Match[str]) -> str:
        name = f"picture {len(names) + len(left) + 1} of the text"
        keep(name, match[1], match[2])
        return f"attachment:{quote(name)}"

    def of_markdown(match: re.Match[str]) -> str:
        alt, target = match["alt"], match["angled"] or match["to"]
        name = storable(unquote(target).removeprefix("attachment:"))
        if re.match("https?://", target):
            left[target] = "Not shown: a page loads nothing from the web."
            return f"[{alt or target}]({target})"
        key = one_spelling(name)
        if key not in names and name not in left:
            if found := _file(folder, name):
                keep(name, *found)
            else:
                left[name] = "Not shown: it is neither in the notebook nor a picture in its folder."
        return f"![{alt}](attachment:{names[key]})" if key in names else alt

    def of_reference(match: re.Match[str]) -> str:
        key = one_spelling(unquote(match[2]))
        return f"{match[1]}attachment:{names.get(key, match[2])}"

    for name, data in attachments.items() if isinstance(attachments, dict) else ():
        bundle = data.items() if isinstance(data, dict) else ()
        found = [(mime, text) for mime, text in bundle if mime in KINDS and isinstance(text, str)]
        keep(str(name), *(found[0] if found else ("", "")))
    text = _DATA.sub(of_data, source)
    if len(text) <= MAX_MARKDOWN:
        text = _PICTURE.sub(of_markdown, _TAG.sub(_of_tag, text))
        text = _REFERENCE.sub(of_reference, text)
    return text + "".join(f"\n\n{name}: {why}" for name, why in left.items()), kept


def _of_tag(match: re.Match[str]) -> str:
    """Return an <img> as markdown."""
    tag = BeautifulSoup(match[0], "html.parser").img
    source = str(tag.get("src") or "") if tag else ""
    alt = re.sub(r"[\[\]\n]", " ", str(tag.get("alt") or "")) if tag else ""
    return f"![{alt}](<{unquote(source)}>)" if source else match[0]


def _file(folder: Path | None, name: str) -> tuple[str, str] | None:
    """Return type and base64 of a file in a folder, None if it is not there or elsewhere by a link."""
    try:
        path = (folder / name).resolve() if folder else Path()
        if not folder or not path.is_relative_to(folder.resolve()) or not path.is_file():
            return None
        with path.open("rb") as file:
            data = file.read(100 * MAX_CHARACTERS)
    except (OSError, ValueError):  # no such file; a name that is none
        return None
    return mimetypes.guess_type(name)[0] or "", base64.b64encode(data).decode()


def _not_shown(mime: str, text: str) -> str:
    """Return why a page does not show a picture given in base64, in a sentence; "" if it can."""
    if mime not in KINDS or not _BASE64.fullmatch(text):
        return "Not shown: it must be a PNG, JPEG or SVG."
    if len(text) > MAX_CHARACTERS:
        size = f"{len(text) * 0.75e-6:.1f} MB; a page holds {MAX_CHARACTERS * 0.75e-6:.1f} MB each."
        return f"Not shown: a picture of {size}"
    return too_large(mime, text) if mime in SIZED else ""


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
