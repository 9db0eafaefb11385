"""Frames from a sandbox: plain data in, everything else refused before it costs anything."""

from __future__ import annotations

import json
import os
import pickle
import struct

import numpy as np
import pytest

from course_grader import frames


def payload(plain: bytes, blob: bytes = b"") -> bytes:
    return struct.pack(">Q", len(plain)) + plain + blob


def framed(*table: object, blob: bytes = b"") -> bytes:
    return payload(json.dumps([{}, table]).encode(), blob)


def test_what_is_packed_comes_back() -> None:
    arrays = {
        "0/x": np.arange(6.0).reshape(2, 3),
        "1/flag": np.array(True),
        "1/c": np.ones((2, 0), np.complex128),
    }
    arrays["2/t"] = np.arange(6).reshape(2, 3).T  # not contiguous
    plain, found = frames.unpack(frames.pack({"a": [1, None, "é"]}, arrays)[8:])
    assert plain == {"a": [1, None, "é"]}
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        struct.pack(">Q", 2**60) + b"{}",
        payload(b"[1]"),
        payload(b"[" * 200_000),
        payload(pickle.dumps({})),
        payload(b"{}"),
        payload(b"[[], []]"),
        framed(blob=b"behind"),
        framed(["x", "|O", [1]], blob=b"12345678"),
        framed(["x", "<f8,<f8", [1]], blob=b"1234567812345678"),
        framed(["x", "<f8", [10**12]], blob=b"12345678"),
        framed(["x", "<f8", [-1]], ["y", "<f8", [2]], blob=b"12345678"),
        framed(["x", "<f8", [-1, -1]], blob=b"12345678"),
        framed(["x", "<f8", [1.0]], blob=b"12345678"),
        framed(["x", "<f8", [True]], blob=b"12345678"),
        framed(["x", ["<f8"], [1]], blob=b"12345678"),
    ],
)
def test_anything_else_is_broken(hostile: bytes) -> None:
    with pytest.raises(frames.Broken):
        frames.unpack(hostile)


def test_a_length_is_not_believed() -> None:
    read, write = os.pipe()
    os.write(write, struct.pack(">Q", 2**50))
    with pytest.raises(frames.Broken, match="a frame of"):
        frames.receive(read, 5.0)
    with pytest.raises(frames.Broken, match="too slow"):
        frames.receive(read, 0.05)
    os.close(write)
    with pytest.raises(frames.Broken, match="gone"):
        frames.receive(read, 5.0)
    os.close(read)
