"""A rank alone with its answer in the judge's sandbox: the kernel closes all ways to others but sockets.

Forked, a rank enters user, mount and IPC namespaces of its own, before it has a second thread: another's
memory and descriptors are closed to it from then on, and everything but /tmp is read-only. Between its inputs
and the first line of the answer it gets a /tmp of its own, /proc shows itself alone, and system calls that
reach other processes are refused. Ranks share the sandbox's network, whose loopback is counted outside.

Where a kernel or a container allows no such namespaces, the system calls are refused all the same, and the
judge says what stays open.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from multiprocessing import forkserver, resource_tracker
from pathlib import Path
from typing import Any

from course_grader.inside.system_calls import refuse_in_rank

_TMP_BYTES = 600_000_000  # of all ranks together
_DUMPABLE = 4  # of prctl
_NEW_MOUNTS, _NEW_IPC, _NEW_USER = 0x20000, 0x8000000, 0x10000000
_READ_ONLY, _NO_SUID, _NO_DEVICES, _BIND, _MOVE = 1, 2, 4, 4096, 8192
_MOUNT_SETATTR, _RECURSIVE, _HERE = 442, 0x8000, -100
_CAPABILITIES = 0x20080522  # the version of the kernel's structure

_problem: str | None = None  # what cannot be done here; None where nobody asked for it
_alone = False  # this process has left the others


def prepare_server() -> None:
    """Make the server of ranks one whose memory no rank can open, and whose ranks are on their own.

    Where that fails, it is not tried on a rank: half of it could do harm to an honest answer.
    """
    global _problem
    ctypes.CDLL(None).prctl(_DUMPABLE, 0, 0, 0, 0)
    _problem = trial()
    if not _problem:
        os.register_at_fork(after_in_child=_leave_others)


def close_doors(world_size: int, *, processes: bool) -> None:
    """Close what an answer on this rank could reach other ranks by; for the rest of the process's life.

    `processes`: the exercise starts some. Never raises: what a machine lacks is no fault of the answer's.
    """
    if _problem is None:
        return
    _own_descriptors()
    _close_doors(world_size, processes)


def follow() -> None:
    """Close the doors of this process, which shares the namespaces of a rank that has closed its own."""
    if _problem is not None:
        with _told("capabilities"):
            drop_capabilities()
        _refuse_calls(processes=True)


def _close_doors(world_size: int, processes: bool) -> None:
    if not _problem:
        with _told("mount"):
            _own_files(_TMP_BYTES // world_size, processes)
            drop_capabilities()
    _refuse_calls(processes)


def _refuse_calls(processes: bool) -> None:
    global _problem
    try:
        refuse_in_rank(processes)
    except OSError as error:
        _problem = f"{_problem}; {error}" if _problem else str(error)


def trial() -> str:
    """Try it in a process of its own; return what does not work here, "" if all does."""
    global _problem
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            _problem = ""
            _leave_others()
            _close_doors(1, processes=False)
            os.write(into, f"{_problem}.".encode())
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as said:
        text = said.read().decode()
    os.waitpid(pid, 0)
    return text[:-1] if text else "the process ended before it could say so"


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """Keep what went wrong in `_problem`."""
    global _problem
    try:
        yield
    except OSError as error:
        _problem = f"{what}: {error.strerror}"


def _leave_others() -> None:
    """Enter namespaces of this process's own, which may have one thread."""
    global _alone
    if _alone:
        return  # what a rank forks
    _alone, libc = True, ctypes.CDLL(None)
    uid, gid = os.getuid(), os.getgid()
    libc.prctl(_DUMPABLE, 1, 0, 0, 0)  # otherwise its own /proc/self belongs to root
    with _told("user namespace"):
        call_libc("unshare", _NEW_USER | _NEW_MOUNTS | _NEW_IPC)
        maps = {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"}
        for name, text in maps.items():
            Path(f"/proc/self/{name}").write_text(text, encoding="ascii")
        _set_read_only("/", True)  # now: later this rank has files open for writing, below /tmp
        _set_read_only("/tmp", False)


def _own_files(tmp_bytes: int, processes: bool) -> None:
    """Give this process a /tmp, which is its /dev/shm and its home too."""
    _mount("tmpfs", "/tmp", _NO_SUID | _NO_DEVICES, f"size={tmp_bytes},mode=1777")
    _mount("tmpfs", "/dev/pts", _READ_ONLY)
    if not processes:
        _own_proc(os.getpid())
    home = os.path.expanduser("~")
    for path in ("/dev/shm", home):
        _mount("/tmp", path, _BIND)
    os.chdir(home)  # this process stood in the home below


def _own_descriptors() -> None:
    """Replace the descriptors that share their flags and places with those of other ranks."""
    server: Any = forkserver._forkserver  # typeshed does not know these attributes
    tracker: Any = resource_tracker._resource_tracker
    for shared in (0, server._forkserver_alive_fd, tracker._fd):
        if shared is not None:
            own = os.open(os.devnull, os.O_RDWR)
            os.dup2(own, shared)
            os.close(own)


def _own_proc(pid: int) -> None:
    """Leave of /proc what is this process's; a new one may not be mounted in a sandbox."""
    os.mkdir("/tmp/proc")
    _mount(f"/proc/{pid}", "/tmp/proc", _BIND)
    _mount("tmpfs", "/proc", _NO_SUID | _NO_DEVICES, "mode=0755")
    os.mkdir(f"/proc/{pid}")
    os.symlink(str(pid), "/proc/self")
    _mount("/tmp/proc", f"/proc/{pid}", _MOVE)
    os.rmdir("/tmp/proc")
    _set_read_only("/proc", True)


def _set_read_only(path: str, on: bool) -> None:
    """Let nothing that is mounted at `path` be written, or all; for the root also what is mounted below."""
    attributes = (ctypes.c_uint64 * 4)(int(on), int(not on), 0, 0)  # set, clear, propagation, user namespace
    where = (_HERE, path.encode(), _RECURSIVE if path == "/" else 0, attributes, ctypes.sizeof(attributes))
    call_libc("syscall", _MOUNT_SETATTR, *where)


def drop_capabilities() -> None:
    """Give up every capability. Raises: OSError."""
    call_libc("capset", (ctypes.c_uint32 * 2)(_CAPABILITIES, 0), (ctypes.c_uint32 * 6)())


def _mount(source: str, target: str, flags: int, options: str = "") -> None:
    kind = b"tmpfs" if source == "tmpfs" else None
    call_libc("mount", source.encode(), target.encode(), kind, ctypes.c_ulong(flags), options.encode())


def call_libc(name: str, *arguments: Any) -> None:
    """Call a function of libc. Raises: OSError if it does not return 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc[name](*arguments) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
