"""System calls that a sandbox refuses: those that give memory which no process's size shows.

A file without a name (memfd_create, memfd_secret) and a segment of System V (shmget) may hold gigabytes that
nobody has mapped. The sandbox's limit on memory adds up sizes of processes, so there must be no such memory.
"""

from __future__ import annotations

import errno
import os
import platform
import struct

# machine: architecture as the kernel's audit names it, numbers of memfd_create, shmget, memfd_secret
_CALLS = {"x86_64": (0xC000003E, (319, 29, 447)), "aarch64": (0xC00000B7, (279, 194, 447))}
FORBIDDEN = _CALLS.get(platform.machine())
_X32 = 0x40000000  # added to a number it names the same call
_LOAD, _EQUAL, _AT_LEAST, _END = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.ENOSYS


def filter_descriptor() -> int:
    """Return a descriptor from which bubblewrap reads the filter (`--seccomp`), empty on other machines."""
    out, into = os.pipe()
    os.write(into, _filter())
    os.close(into)
    return out


def _filter() -> bytes:
    """Instructions for the kernel: (code, how many to skip if true, if false, value)."""
    if FORBIDDEN is None:
        return b""
    architecture, numbers = FORBIDDEN
    last = len(numbers)
    program = [
        (_LOAD, 0, 0, 4),  # the architecture: calls of a 32-bit program have other numbers
        (_EQUAL, 0, last + 3, architecture),
        (_LOAD, 0, 0, 0),  # the call's number
        (_AT_LEAST, last + 1, 0, _X32),
        *((_EQUAL, last - i, 0, number) for i, number in enumerate(numbers)),
        (_END, 0, 0, _ALLOW),
        (_END, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)
