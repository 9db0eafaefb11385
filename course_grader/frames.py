"""Plain data between the judge and its sandbox: JSON and arrays in frames over a pipe, never a pickle.

The judge's side treats every frame as hostile: its length, the arrays' sizes and types are checked before
anything is allocated for them.
"""

from __future__ import annotations

import json
import math
import os
import select
import struct
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from course_grader.exercise import Array

MAX_BYTES = 256_000_000  # of one frame
MAX_VALUES = 4_000_000  # of its JSON: each takes some hundred bytes here, and two there
_DTYPES = {np.dtype(code).str: np.dtype(code) for code in "?bBhHiIqQefdFD"}  # numbers, and nothing else


class Broken(Exception):
    """The other side ended, was too slow, or wrote something that is no frame."""


class TooSlow(Broken):
    """The other side said nothing in time."""


def pack(plain: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> bytes:
    """Return one frame: its length, the JSON's length, the JSON with a table of the arrays, their bytes."""
    named = {name: np.asarray(array) for name, array in (arrays or {}).items()}
    table = [[name, array.dtype.str, array.shape] for name, array in named.items()]
    text = json.dumps([plain, table]).encode()
    blob = b"".join(array.tobytes() for array in named.values())
    return struct.pack(">QQ", 8 + len(text) + len(blob), len(text)) + text + blob


def unpack(payload: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read what follows a frame's length.

    Raises: Broken if it is not plain data.
    """
    try:
        (length,) = struct.unpack(">Q", payload[:8])
        if length > len(payload) - 8:
            raise Broken("its text is longer than itself")
        text = payload[8 : 8 + length]
        if sum(map(text.count, (b",", b"[", b"{"))) > MAX_VALUES:
            raise Broken("its text holds too much")
        plain, table = json.loads(text)
        arrays = _arrays(table, payload, 8 + length)
    except Exception as error:  # whatever hostile bytes make a parser raise
        raise Broken(f"not plain data ({type(error).__name__})") from error
    if not isinstance(plain, dict):
        raise Broken("not an object")
    return plain, arrays


def _arrays(table: list[Any], payload: bytes, start: int) -> dict[str, Array]:
    """Copy the arrays out of a frame, which must hold just these from `start` on."""
    found: dict[str, Array] = {}
    for name, code, shape in table:
        dtype, count = _DTYPES[code], math.prod(shape)
        end = start + count * dtype.itemsize
        if not all(type(size) is int and size >= 0 for size in shape) or end > len(payload):
            raise Broken("an array must be as large as its shape says")
        found[str(name)] = np.frombuffer(payload, dtype, count, start).reshape(shape).copy()
        start = end
    if start != len(payload):
        raise Broken("there must be nothing behind the arrays")
    return found


def send(fd: int, frame: bytes, timeout_s: float = 60.0) -> None:
    """Write a whole frame. Raises: Broken if nobody reads it."""
    view = memoryview(frame)
    deadline_s = time.monotonic() + timeout_s
    while view:
        if not select.select([], [fd], [], max(0.0, deadline_s - time.monotonic()))[1]:
            raise Broken("nobody reads")
        try:
            view = view[os.write(fd, view[:65536]) :]
        except OSError as error:
            raise Broken("the reader has gone") from error


def receive(fd: int, timeout_s: float | None = None, limit_bytes: int = MAX_BYTES) -> bytes:
    """Read what follows a frame's length. Raises: Broken."""
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    (length,) = struct.unpack(">Q", _read(fd, 8, deadline_s))
    if not 8 <= length <= limit_bytes:
        raise Broken(f"a frame of {length} bytes")
    return _read(fd, length, deadline_s)


def _read(fd: int, count: int, deadline_s: float | None) -> bytes:
    data = bytearray()
    while len(data) < count:
        left_s = None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
        if not select.select([fd], [], [], left_s)[0]:
            raise TooSlow("too slow")
        try:
            piece = os.read(fd, min(1 << 20, count - len(data)))
        except OSError as error:
            raise Broken("the writer has gone") from error
        if not piece:
            raise Broken("the writer has gone")
        data += piece
    return bytes(data)
