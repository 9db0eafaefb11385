"""Refuse, inside a rank, the ways around torch.distributed by which an answer could reach other ranks.

The trace counts what goes through torch.distributed. An answer that sends its data another way would pass a
count of bytes, so the other ways are closed: files with their locks and attributes, the output of other
ranks, sockets, memory maps, resource limits and the rendezvous store.
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

_TRUSTED = (  # files of these may open anything: they do so for themselves
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
    "os.remove": "a file",
    "os.truncate": "a file",
    "os.rmdir": "a folder",
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
_TEMPORARY = os.path.realpath(tempfile.gettempdir())
# Not the whole temporary folder: a traceback looks there for the answer's own cell.
_SHARED = re.compile(rf"{re.escape(_TEMPORARY)}/course_(ranks|inputs)_|/dev/shm/|/proc/(?P<pid>\d+)(/|$)")


def shut(refuse: Callable[[str], None]) -> None:
    """Call `refuse(what)` when the answer opens a side door; torch and this library may."""
    by_answer, is_shared, door = _watchers()
    more = ("open", "os.listdir", "os.scandir", "compile", "code.__new__", "object.__setattr__")
    events = frozenset((*_EVENTS, *more))

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event in events and by_answer() and (what := door(event, args)):
            refuse(what)

    def wrap(owner: Any, name: str, what: str, when: Callable[..., bool] = lambda *_, **__: True) -> None:
        # Local copies: patching one wrapper's variables cannot disable the others.
        real, sees, tell = getattr(owner, name, None), by_answer, refuse
        if real is None:
            return

        def watched(*args: Any, **kwargs: Any) -> Any:
            if sees() and when(*args, **kwargs):
                tell(what)
            return real(*args, **kwargs)

        setattr(owner, name, watched)

    sys.addaudithook(audit)
    for method in _STORE_METHODS:
        wrap(dist.distributed_c10d.Store, method, "the rendezvous store")
    wrap(torch, "save", "torch.save")
    for owner in (torch, torch.UntypedStorage):
        wrap(owner, "from_file", "a file in memory")
    for module in (os, sys.modules.get("posix")):
        for call in ("memfd_create", "mkfifo", "mknod"):  # no audit event
            wrap(module, call, f"os.{call}")
        for call in ("stat", "lstat"):  # a file's size can carry a message
            wrap(module, call, f"os.{call}", lambda path, *_, **__: is_shared(path))


def _watchers() -> tuple[Callable[[], bool], Callable[[Any], bool], Callable[[str, tuple[Any, ...]], str]]:
    """Return (whether the answer does this, whether a path is shared, what an event opens).

    They use local copies only: an answer may patch this module and builtins.
    """
    trusted, libraries, events, writes, shared = _TRUSTED, _LIBRARIES, dict(_EVENTS), _WRITES, _SHARED
    frame_of, realpath, decode, devnull = sys._getframe, os.path.realpath, os.fsdecode, os.devnull
    is_a, number, path_types, pid = isinstance, int, (str, bytes, os.PathLike), str(os.getpid())
    starts = str.startswith  # not name.startswith: a name may be of a str subclass that overrides it

    def by_answer() -> bool:
        """Say whether the answer does it, directly or through a library other than torch and this one."""
        frame: FrameType | None = frame_of(2)
        while frame is not None:
            file = frame.f_code.co_filename
            if starts(file, trusted):
                return False
            if not starts(file, libraries):
                return True
            frame = frame.f_back
        return False

    def is_shared(path: Any) -> bool:
        """Say whether other ranks can write there: inputs, output, shared memory, another's /proc."""
        if not is_a(path, path_types):
            return False
        found = shared.match(realpath(decode(path)))
        return found is not None and found["pid"] != pid

    def door(event: str, args: tuple[Any, ...]) -> str:
        """What the event opens, "" if nothing."""
        if event == "open":
            path, _, flags = args
            if is_a(flags, number) and flags & writes:
                return f"writing to the file {path!r}" if path != devnull else ""
            return f"reading the file {path!r}" if is_shared(path) else ""
        if event in ("os.listdir", "os.scandir"):
            return f"the folder {args[0]!r}" if is_shared(args[0]) else ""
        if event in ("compile", "code.__new__"):  # `by_answer` goes by the file's name
            named = is_a(args[1], path_types) and starts(decode(args[1]), (*trusted, *libraries))
            return "code under the name of a library's" if named else ""
        if event == "object.__setattr__":
            return "a function's code" if args[1] == "__code__" else ""
        return events[event]

    return by_answer, is_shared, door
