"""Refuse, inside a rank, the ways around torch.distributed by which an answer could reach other ranks.

Files, their locks and marks, what other ranks have printed, sockets, memory maps, limits and the rendezvous
store. What launches messages for show and sends its data another way would pass a count of bytes. The trace
knows only torch.distributed; so it must be the only way.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
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
_WATCHED = frozenset((*_EVENTS, "open", "os.listdir", "os.scandir", "compile", "code.__new__"))
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC


def shut(refuse: Callable[[str], None]) -> None:
    """Call `refuse(what)` when the answer opens a side door; torch and this library may."""
    by_answer, door = _by_answer, _door  # an answer may put others into this module

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event in _WATCHED and by_answer() and (what := door(event, args)):
            refuse(what)

    sys.addaudithook(audit)
    for method in _STORE_METHODS:
        _wrap(dist.distributed_c10d.Store, method, "the rendezvous store", refuse)
    _wrap(torch, "save", "torch.save", refuse)
    for call in ("memfd_create", "mkfifo", "mknod"):  # no audit event
        _wrap(os, call, f"os.{call}", refuse)
    for call in ("stat", "lstat"):  # a file's size says something, too
        _wrap(os, call, f"os.{call}", refuse, lambda path, *_, **__: _is_shared(path))


def _wrap(
    owner: Any,
    name: str,
    what: str,
    refuse: Callable[[str], None],
    when: Callable[..., bool] = lambda *_, **__: True,
) -> None:
    real, by_answer = getattr(owner, name, None), _by_answer
    if real is None:
        return

    def watched(*args: Any, **kwargs: Any) -> Any:
        if by_answer() and when(*args, **kwargs):
            refuse(what)
        return real(*args, **kwargs)

    setattr(owner, name, watched)


def _door(event: str, args: tuple[Any, ...]) -> str:
    """What the event opens, "" if nothing."""
    if event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITES:
            return f"writing to the file {path!r}" if path != os.devnull else ""
        return f"reading the file {path!r}" if _is_shared(path) else ""
    if event in ("os.listdir", "os.scandir"):
        return f"the folder {args[0]!r}" if _is_shared(args[0]) else ""
    if event in ("compile", "code.__new__"):  # who does something is told by where its code is from
        return "code under the name of a library's" if _is_librarys(args[1]) else ""
    return _EVENTS[event]


_realpath = os.path.realpath
_TEMPORARY = _realpath(tempfile.gettempdir())
# Not all of it: an answer's own cell has the name of a temporary file, which a traceback looks for.
_SHARED = re.compile(rf"{re.escape(_TEMPORARY)}/course_(ranks|inputs)_|/dev/shm/|/proc/(?P<pid>\d+)(/|$)")


def _is_shared(path: Any) -> bool:
    """Whether other ranks can have left something there: inputs, output, shared memory, another's /proc."""
    if not isinstance(path, str | bytes | os.PathLike):
        return False
    found = _SHARED.match(_realpath(os.fsdecode(path)))
    return found is not None and found["pid"] != str(os.getpid())


def _is_librarys(name: Any) -> bool:
    text = os.fsdecode(name) if isinstance(name, str | bytes) else ""
    return text.startswith((*_TRUSTED, *_LIBRARIES))


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
