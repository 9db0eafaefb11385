"""Plain data between the judge and its sandbox: JSON and arrays in frames over a pipe, never a pickle.

The judge's side treats every frame as hostile: its length, the arrays' sizes and types are checked before
anything is allocated for them.
"""

from __future__ import annotations

import io
import json
import os
import select
import struct
import time
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from course_lib.grading.exercise import Array

MAX_BYTES = 256_000_000  # of one frame
MAX_VALUES = 4_000_000  # of its JSON: each takes some hundred bytes here, and two there


class Broken(Exception):
    """The other side ended, was too slow, or wrote something that is no frame."""


def pack(plain: Mapping[str, Any], arrays: Mapping[str, Array] | None = None) -> bytes:
    """Return one frame: its length, the JSON's length, the JSON, an npz of the arrays."""
    text = json.dumps(plain).encode()
    buffer = io.BytesIO()
    if arrays:
        named: dict[str, Any] = dict(arrays)
        np.savez(buffer, **named)
    blob = buffer.getvalue()
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
        plain = json.loads(text)
        blob = payload[8 + length :]
        arrays = _arrays(blob) if blob else {}
    except Exception as error:  # whatever hostile bytes make a parser raise
        raise Broken(f"not plain data ({type(error).__name__})") from error
    if not isinstance(plain, dict):
        raise Broken("not an object")
    return plain, arrays


def _arrays(blob: bytes) -> dict[str, Array]:
    with zipfile.ZipFile(io.BytesIO(blob)) as file:
        entries = file.infolist()
        stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
        if not stored or sum(entry.file_size for entry in entries) > len(blob):
            raise Broken("arrays must be stored as they are")
        for entry in entries:
            _check_size(file.read(entry))
    with np.load(io.BytesIO(blob), allow_pickle=False) as npz:
        return {name: np.array(npz[name]) for name in npz.files}


def _check_size(data: bytes) -> None:
    """Check that the array is as large as its header says, before memory is allocated for it."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    count = 1
    for size in shape:
        count *= int(size)
    is_odd = dtype.hasobject or not dtype.itemsize or min(shape, default=0) < 0
    if is_odd or count * dtype.itemsize != len(data) - stream.tell():
        raise Broken("an array's header does not fit its data")


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
            raise Broken("too slow")
        try:
            piece = os.read(fd, min(1 << 20, count - len(data)))
        except OSError as error:
            raise Broken("the writer has gone") from error
        if not piece:
            raise Broken("the writer has gone")
        data += piece
    return bytes(data)
