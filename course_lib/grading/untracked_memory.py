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
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from itertools import compress
from typing import Any

import numpy as np

from course_lib.trace.memory import TrackedStorage

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
_HONEST = frozenset((*_BOXES, OrderedDict))  # most of a module's boxes are of these, and empty
_PLAIN_BOXES = frozenset(map(id, _BOXES))
_ROWS = frozenset((id(list), id(tuple)))
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
    holders = [one for one in gc.get_objects() if type(one) is not TrackedStorage]  # the trace's: nearly half
    while holders:
        total += sum(map(_numbers_in, _filled(_of_kind(holders, _kinds(holders), _BOXES))))
        held = gc.get_referents(*holders)  # of all in one go: one by one takes ten times as long
        kinds = _kinds(held)
        total += sum(map(_own_bytes, _first_seen(_of_kind(held, kinds, _BUFFERS), seen)))
        total += _long_texts(compress(held, map(id(str).__eq__, kinds)), holders, seen)
        whole = [n for n in compress(held, map(id(int).__eq__, kinds)) if not -_HUGE < n < _HUGE]
        total += sum(map(sys.getsizeof, _first_seen(whole, seen)))
        boxes = compress(held, map(_PLAIN_BOXES.__contains__, kinds))
        # Python lists no boxes of plain values.
        holders = _first_seen([box for box in boxes if not gc.is_tracked(box)], seen)
    return total


def _kinds(objects: Iterable[Any]) -> list[int]:
    """Return the types by id: a metaclass can override ==."""
    return list(map(id, map(type, objects)))


def _of_kind(objects: Sequence[Any], kinds: Sequence[int], wanted: tuple[type, ...]) -> list[Any]:
    """Return the objects whose type is one of `wanted` or below it, whatever their __class__ says."""
    types_ = dict(zip(kinds, map(type, objects), strict=True))
    chosen = {kind for kind, found in types_.items() if issubclass(found, wanted)}
    return list(compress(objects, map(chosen.__contains__, kinds))) if chosen else []


def _filled(boxes: Iterable[Any]) -> list[Any]:
    """Return those that hold something; a class of the answer's may say anything of its length."""
    return [box for box in boxes if type(box) not in _HONEST or box]


def _first_seen(objects: Iterable[Any], seen: set[int]) -> list[Any]:
    """Return each object that was not seen before, once, and note it."""
    new = {id(one): one for one in objects if id(one) not in seen}
    seen.update(new)
    return list(new.values())


def _numbers_in(box: Any) -> int:
    """Return the bytes of the numbers in one container and in its short rows."""
    held = gc.get_referents(box)  # a list made in one go: other threads may change the box
    kinds = _kinds(held) if len(held) > _FEW else []
    total = _bytes_of_numbers(held, kinds) if sum(map(_NUMBERS.__contains__, kinds)) > _FEW else 0
    if not _ROWS.isdisjoint(kinds):
        rows = [row for row in compress(held, map(_ROWS.__contains__, kinds)) if len(row) <= _FEW]
        held_in_rows = [number for row in rows for number in row]
        total += _bytes_of_numbers(held_in_rows, _kinds(held_in_rows))
    return total


def _bytes_of_numbers(held: Sequence[Any], kinds: Sequence[int]) -> int:
    """Return the bytes of the floats, and of the whole numbers as wide as a float, if there are several."""
    counts = Counter(kinds)
    floats = sum(counts[kind] for kind in _FLOATS)
    total = sum(counts[kind] * size for kind, size in _FLOATS.items()) if floats > _FEW else 0
    sizes = [abs(one) for one in held if type(one) is int] if counts[id(int)] else []
    wide, narrow = sum(one >= _WIDE for one in sizes), sum(one in _BITS_OF_FLOAT32 for one in sizes)
    return total + (8 * wide if wide > _FEW else 0) + (4 * narrow if narrow > _FEW else 0)


def _long_texts(texts: Iterable[str], holders: Sequence[Any], seen: set[int]) -> int:
    """Return the bytes of the long ones of `texts` that a holder has not only as its docstring."""
    long = [text for text in texts if len(text) >= _LONG]
    if not long:
        return 0
    docs = [box.get("__doc__") for box in holders if type(box) is dict]
    docs += [box.__doc__ for box in holders if type(box) is types.FunctionType]
    held = Counter(map(id, long)) - Counter(map(id, docs))
    return sum(map(sys.getsizeof, _first_seen([text for text in long if id(text) in held], seen)))


def _own_bytes(buffer: Any) -> int:
    if isinstance(buffer, np.ndarray):
        return int(buffer.nbytes) if buffer.flags.owndata and not buffer.dtype.hasobject else 0
    if issubclass(type(buffer), _FILES):
        return 0 if buffer.closed else len(buffer.getvalue())
    return memoryview(buffer).nbytes
