"""The zygote: a process with torch loaded, whose forks enter sandboxes that bubblewrap has made.

Loading torch is most of what a sandbox costs. A zygote has never run a line of a student's code and has read
nothing of the judge's: neither oracles nor sizes nor its environment. Its fork joins the namespaces of a
sandbox, forks there once more, and takes on what bubblewrap's command has: limits, a user without rights, no
capabilities, the filter of system calls. Only then does it run anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_grader.inside import system_calls
from course_grader.inside.forked import run_to_end
from course_grader.inside.seclusion import call_libc, drop_capabilities
from course_lib.ranks.forkserver import settle

MAX_REQUEST = 1_000_000
_NAMESPACES = ("cgroup", "ipc", "uts", "net", "pid", "mnt")  # the last takes the folders of the others away
_GET_USER_NAMESPACE = 0xB701  # of ioctl: the one that owns a namespace
_DUMPABLE, _DROP_BOUND, _NO_NEW_PRIVILEGES = 4, 24, 38  # of prctl
_HIGHEST_CAPABILITY = 63
FREE = 400  # descriptors from here on are nobody's


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What runs in a sandbox, and as whom.

    Attributes:
        inside: a process of the sandbox, as this machine numbers it.
        argv: of Python: "-c" and code, or "-m", a module and its arguments.
        environment: all of it.
        folder: where it starts.
        limits: name in `resource`, and the limit.
        uid: user and group, None to keep the one it has.
        fds: numbers of the descriptors it gets, in the order in which they are sent; 1 and 2 are its output.
    """

    inside: int
    argv: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    limits: Mapping[str, int]
    uid: int | None
    fds: Sequence[int]


def serve(requests: socket.socket, hidden: tuple[str, ...], modules: Sequence[str]) -> None:
    """Load `modules`, say so, then fork for each request until there are no more.

    A request is JSON with descriptors. {"load": modules, "environment": variables} and a socket: a zygote
    that has these too. An `Entry` as a dictionary, and three descriptors before its own: one that is told the
    pid or what went wrong, one that is told the exit status, and the sandbox's output.

    Raises: ImportError if one of `hidden`, which no student may see, would be loaded.
    """
    for name in modules:
        importlib.import_module(name)
    if seen := [name for name in sys.modules if name.startswith(hidden)]:
        raise ImportError(f"a student's code must not find the judge's modules; {seen} would be loaded")
    settle()
    requests.send(b"ready")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork
    while True:
        text, fds, _, _ = socket.recv_fds(requests, MAX_REQUEST, 64)
        if not text:
            os._exit(0)
        if os.fork() == 0:
            request = json.loads(text)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            if "load" in request:
                os.environ.update(request["environment"])
                serve(socket.socket(fileno=fds[0]), hidden, request["load"])
            _start(Entry(**request), fds)
        for fd in fds:
            os.close(fd)


def _start(entry: Entry, fds: Sequence[int]) -> None:
    """Fork into the sandbox, wait for its end, and end."""
    started, ended, output, *own = fds
    try:
        _join(entry.inside)
        pid = os.fork()
    except OSError as error:
        os.write(started, f"{error.strerror or error}".encode())
        os._exit(1)
    if pid == 0:
        run_to_end(lambda: _become(entry, output, own))
    os.write(started, str(pid).encode())
    os.closerange(3, ended)
    os.closerange(ended + 1, FREE)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        os.write(ended, f"{code if code >= 0 else 128 - code}\n".encode())
    os._exit(0)


def _join(inside: int) -> None:
    """Join the namespaces of a process; those of processes take effect with the next fork.

    Raises: OSError.
    """
    kinds = ("user", *_NAMESPACES)
    own = {kind: os.stat(f"/proc/self/ns/{kind}").st_ino for kind in kinds}
    theirs = {kind: os.open(f"/proc/{inside}/ns/{kind}", os.O_RDONLY) for kind in kinds}
    # bubblewrap may have made a namespace of users in another, which owns all the rest.
    theirs = {"owner": fcntl.ioctl(theirs["mnt"], _GET_USER_NAMESPACE), **theirs}
    theirs["user"] = theirs.pop("user")  # last
    for kind, namespace in theirs.items():
        known, joined = "user" if kind == "owner" else kind, os.fstat(namespace).st_ino
        if own[known] != joined:
            call_libc("setns", namespace, 0)
            own[known] = joined


def _become(entry: Entry, output: int, own: Sequence[int]) -> None:
    """Give up everything that is not the sandbox's, then run what is to run there."""
    os.setsid()
    _take_descriptors(output, own, entry.fds)
    os.environ.clear()
    os.environ.update(entry.environment)
    os.chdir(entry.folder)
    for name, most in entry.limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))
    _drop_rights(entry.uid)
    system_calls.refuse_in_sandbox()
    _run(list(entry.argv))


def _take_descriptors(output: int, own: Sequence[int], numbers: Sequence[int]) -> None:
    """Keep nothing but an empty input, the output, and `own` under the numbers that the caller uses."""
    nothing = os.open(os.devnull, os.O_RDWR)
    wanted = {0: nothing, 1: output, 2: output, **dict(zip(numbers, own, strict=True))}
    high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD, FREE) for number, fd in wanted.items()}
    os.closerange(0, FREE)
    for number, fd in high.items():
        os.dup2(fd, number)
    os.closerange(FREE, max(high.values()) + 1)


def _drop_rights(uid: int | None) -> None:
    """Become a user without capabilities who cannot get any. Raises: OSError."""
    libc = ctypes.CDLL(None)
    for capability in range(_HIGHEST_CAPABILITY + 1):
        libc.prctl(_DROP_BOUND, capability, 0, 0, 0)  # those that the kernel does not know are refused
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    drop_capabilities()
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    libc.prctl(_DUMPABLE, 1, 0, 0, 0)  # as after an execve; a change of users takes it away


def _run(argv: list[str]) -> None:
    """Run Python's arguments as Python does."""
    if argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        main = sys.modules["__main__"] = type(sys)("__main__")
        exec(compile(argv[1], "<string>", "exec"), vars(main))
    else:
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), tuple(sys.argv[2].split(",")), sys.argv[3:])
