"""Numbers that a rank keeps outside tensors, where the trace's count of live bytes does not look.

A vector turned into a list of floats or copied into numpy is as much in memory as before.
"""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
from collections import deque
from typing import Any

import numpy as np

OUTSIDE_TENSORS = "bytes outside tensors"  # name of the value a rank reports
LIMIT_BYTES = 512
_FEW = 4  # up to so many floats in one container are settings, not data
_BOXES = (list, tuple, dict, set, frozenset, deque)
_BUFFERS = (np.ndarray, bytes, bytearray, array.array, mmap.mmap, ctypes.Array)


def bytes_outside_tensors() -> int:
    """Count the bytes of floats in Python's containers and of buffers that containers and objects hold.

    A float counts 8 bytes. A buffer that is a view of other memory, such as a tensor's, does not count.
    Objects that the fork server made before it froze the garbage collector are not examined.
    """
    total, seen = 0, set[int]()
    dull = set[int]()  # types without numbers, by id: a metaclass can override ==
    boxes = gc.get_objects()
    while boxes:
        box = boxes.pop()
        if type(box) in _BOXES:
            # A list first, made in one go: other threads may change the box.
            held_now = list(box.values() if isinstance(box, dict) else box)
            floats = list(map(type, held_now)).count(float)
            total += 8 * floats if floats > _FEW else 0
        referents = gc.get_referents(box)
        if dull.issuperset(map(id, map(type, referents))):
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


def _own_bytes(buffer: Any) -> int:
    if isinstance(buffer, np.ndarray):
        return int(buffer.nbytes) if buffer.flags.owndata and not buffer.dtype.hasobject else 0
    return memoryview(buffer).nbytes
