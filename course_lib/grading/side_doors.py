"""Refuse, inside a rank, the ways around torch.distributed by which an answer could reach other ranks.

Files, their locks and marks, sockets, memory maps, limits and the rendezvous store. What launches messages
for show and sends its data another way would pass a count of bytes. The trace knows only torch.distributed;
so it must be the only way.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

_TRUSTED = (  # what these do, they do for themselves
    "<frozen importlib",
    str(Path(__file__).resolve().parents[1]) + os.sep,
    str(Path(torch.__file__).parent) + os.sep,
)
_LIBRARIES = ("<frozen", *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
_EVENTS = {
    "socket.connect": "a socket",
    "socket.bind": "a socket",
    "mmap.__new__": "a memory map",
    "os.mkdir": "a folder",
    "os.rename": "a file",
    "os.symlink": "a link",
    "os.link": "a link",
    "sqlite3.connect": "a database",
    "fcntl.flock": "a file lock",
    "fcntl.lockf": "a file lock",
    "fcntl.fcntl": "a file's flags",
    "resource.setrlimit": "a resource limit",
    "resource.prlimit": "a resource limit",
    "os.chmod": "a file's mode",
    "os.utime": "a file's times",
    "os.setxattr": "a file's attributes",
}
_STORE_METHODS = ("set", "add", "append", "multi_set", "compare_set", "queue_push")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


def shut(refuse: Callable[[str], None]) -> None:
    """Call `refuse(what)` when the answer opens a side door; torch and this library may."""

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            if (
                isinstance(flags, int)
                and flags & _WRITES
                and not str(path).startswith("/dev/")
                and _by_answer()
            ):
                refuse(f"writing to the file {str(path)!r}")
        elif event in _EVENTS and _by_answer():
            refuse(_EVENTS[event])

    sys.addaudithook(audit)
    for method in _STORE_METHODS:
        _wrap(dist.distributed_c10d.Store, method, "the rendezvous store", refuse)
    _wrap(torch, "save", "torch.save", refuse)
    for call in ("memfd_create", "mkfifo", "mknod"):  # no audit event
        _wrap(os, call, f"os.{call}", refuse)


def _wrap(owner: Any, name: str, what: str, refuse: Callable[[str], None]) -> None:
    real = getattr(owner, name, None)
    if real is None:
        return

    def watched(*args: Any, **kwargs: Any) -> Any:
        if _by_answer():
            refuse(what)
        return real(*args, **kwargs)

    setattr(owner, name, watched)


def _by_answer() -> bool:
    """Whether the answer does this itself, or by way of other libraries than torch and this one."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TRUSTED):
            return False
        if not file.startswith(_LIBRARIES):
            return True
        frame = frame.f_back
    return False
