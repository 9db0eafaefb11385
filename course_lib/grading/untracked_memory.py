"""Numbers that a rank keeps outside tensors, where the trace's count of live bytes does not look.

A vector turned into a list of floats, copied into numpy or written as text is as much in memory as before.
"""

from __future__ import annotations

import array
import ctypes
import decimal
import gc
import io
import mmap
import sys
import types
from collections import Counter, deque
from collections.abc import Sequence
from itertools import compress
from typing import Any

import numpy as np

OUTSIDE_TENSORS = "bytes outside tensors"  # name of the value a rank reports
LIMIT_BYTES = 512
_FEW = 4  # up to so many numbers in one container are settings, not data; unless that is one of many rows
_LONG = 256  # a text of fewer characters is a name, not data
_HUGE = 2 ** (8 * _LONG)  # a smaller whole number is a counter
_WIDE = 2**48  # ids and offsets are below it, the bits of a float64 above
_BITS_OF_FLOAT32 = range(2**26, 2**32)  # offsets of a check's tensors are below it, ids above
_BOXES = (list, tuple, dict, set, frozenset, deque)
_FILES = (io.BytesIO, io.StringIO)
_BUFFERS = (np.ndarray, bytes, bytearray, array.array, mmap.mmap, ctypes.Array, *_FILES)
_ROWS = frozenset((id(list), id(tuple)))
_PLAIN = frozenset((id(str), id(int)))  # by id, here and below: a metaclass can override ==
_FLOATS = {id(float): 8, id(complex): 16, id(decimal.Decimal): 8} | {
    id(kind): np.dtype(kind).itemsize for kind in set(np.sctypeDict.values()) if issubclass(kind, np.inexact)
}
_NUMBERS = frozenset((*_FLOATS, id(int)))


def bytes_outside_tensors() -> int:
    """Count the bytes of numbers in Python's containers and of buffers that containers and objects hold.

    A float counts 8 bytes, a long text or whole number its size. A buffer that is a view of other memory,
    such as a tensor's, does not count, nor does a docstring. Objects that were there before the garbage
    collector was frozen, in the fork server and before an answer is loaded, are not examined.
    """
    total, seen = 0, set[int]()
    dull = set(_PLAIN)  # types without numbers
    boxes = gc.get_objects()
    while boxes:
        box = boxes.pop()
        referents = gc.get_referents(box)  # a list made in one go: other threads may change the box
        kinds = list(map(id, map(type, referents)))
        if type(box) in _BOXES and len(kinds) > _FEW and not _NUMBERS.isdisjoint(kinds):
            total += _numbers_of(referents, kinds)
        if type(box) in _BOXES and len(kinds) > _FEW and not _ROWS.isdisjoint(kinds):
            rows = [held for held in referents if id(type(held)) in _ROWS and len(held) <= _FEW]
            held_in_rows = [number for row in rows for number in row]
            total += _numbers_of(held_in_rows, list(map(id, map(type, held_in_rows))))
        if id(str) in kinds and max(map(len, compress(referents, map(id(str).__eq__, kinds)))) >= _LONG:
            total += _long_ones(str, box, referents, seen)
        if id(int) in kinds and max(map(abs, compress(referents, map(id(int).__eq__, kinds)))) >= _HUGE:
            total += _long_ones(int, box, referents, seen)
        if dull.issuperset(kinds):
            continue  # nearly always; the loop below would take longer than the rest
        for held in referents:
            if id(held) in seen:
                continue
            if issubclass(type(held), _BUFFERS):  # not isinstance, which asks the object's __class__
                seen.add(id(held))
                total += _own_bytes(held)
            elif type(held) not in _BOXES:
                dull.add(id(type(held)))
            elif not gc.is_tracked(held):  # Python lists none of plain values
                seen.add(id(held))
                boxes.append(held)
    return total


def _numbers_of(held: Sequence[Any], kinds: Sequence[int]) -> int:
    """Return the bytes of the floats, and of the whole numbers as wide as a float, in one container."""
    counts = Counter(kinds)
    floats = sum(counts[kind] for kind in _FLOATS)
    total = sum(counts[kind] * size for kind, size in _FLOATS.items()) if floats > _FEW else 0
    sizes = [abs(one) for one in held if type(one) is int] if counts[id(int)] else []
    wide, narrow = sum(one >= _WIDE for one in sizes), sum(one in _BITS_OF_FLOAT32 for one in sizes)
    return total + (8 * wide if wide > _FEW else 0) + (4 * narrow if narrow > _FEW else 0)


def _long_ones(kind: type, box: Any, referents: Sequence[Any], seen: set[int]) -> int:
    """Return the bytes of the long texts or whole numbers that `box` holds and no box before it did."""
    doc = box.get("__doc__") if type(box) is dict else None
    doc = box.__doc__ if type(box) is types.FunctionType else doc
    total = 0
    for held in referents:
        size = sys.getsizeof(held) if type(held) is kind else 0
        if size >= _LONG and held is not doc and id(held) not in seen:
            seen.add(id(held))
            total += size
    return total


def _own_bytes(buffer: Any) -> int:
    if isinstance(buffer, np.ndarray):
        return int(buffer.nbytes) if buffer.flags.owndata and not buffer.dtype.hasobject else 0
    if issubclass(type(buffer), _FILES):
        return 0 if buffer.closed else len(buffer.getvalue())
    return memoryview(buffer).nbytes
