"""Frames from a sandbox: plain data in, everything else refused before it costs anything."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zipfile

import numpy as np
import pytest

from course_lib.grading import wire


def payload(plain: bytes, blob: bytes = b"") -> bytes:
    return struct.pack(">Q", len(plain)) + plain + blob


def npz(name: str, data: bytes, kind: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as file:
        file.writestr(name, data)
    return buffer.getvalue()


def test_what_is_packed_comes_back() -> None:
    arrays = {"0/x": np.arange(6.0).reshape(2, 3), "1/flag": np.array(True), "1/c": np.ones(2, np.complex128)}
    plain, found = wire.unpack(wire.pack({"a": [1, None, "é"]}, arrays)[8:])
    assert plain == {"a": [1, None, "é"]}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def object_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([os.system], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def lying_header() -> bytes:
    buffer = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue() + b"12345678"


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        struct.pack(">Q", 2**60) + b"{}",
        payload(b"[1]"),
        payload(b"[" * 200_000),
        payload(pickle.dumps({})),
        payload(b"{}", b"not a zip"),
        payload(b"{}", npz("x.npy", object_array())),
        payload(b"{}", npz("x.npy", lying_header())),
        payload(b"{}", npz("x.npy", bytes(10**7), zipfile.ZIP_DEFLATED)),
    ],
)
def test_anything_else_is_broken(hostile: bytes) -> None:
    with pytest.raises(wire.Broken):
        wire.unpack(hostile)


def test_a_length_is_not_believed() -> None:
    read, write = os.pipe()
    os.write(write, struct.pack(">Q", 2**50))
    with pytest.raises(wire.Broken, match="a frame of"):
        wire.receive(read, 5.0)
    with pytest.raises(wire.Broken, match="too slow"):
        wire.receive(read, 0.05)
    os.close(write)
    with pytest.raises(wire.Broken, match="gone"):
        wire.receive(read, 5.0)
    os.close(read)
