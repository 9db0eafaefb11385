"""System calls that the kernel refuses: to a whole sandbox, and to a rank that runs a student's answer.

In a sandbox no memory may hide: a file without a name (memfd_create, memfd_secret) and a segment of System V
(shmget) may hold gigabytes that nobody has mapped, and the limit on memory adds up sizes of processes.

A rank may not reach other processes. It shares their PID namespace, since one of its own would cost a second
fork and make the rank process 1, which ignores its own SIGKILL and SIGABRT; so calls that name a process may
name the caller only. This needs no user namespace.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Iterable

# machine: architecture as the kernel's audit names it, column of the tables below
_MACHINES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}
MACHINE = _MACHINES.get(platform.machine())

# Name, number on x86_64, number on aarch64 (-: it has none; another call does the same).
_HIDDEN_MEMORY = "memfd_create 319 279, shmget 29 194, memfd_secret 447 447"
_OTHERS_MEMORY = """
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, process_madvise 440 440,
process_mrelease 448 448, pidfd_open 434 434, pidfd_getfd 438 438, pidfd_send_signal 424 424, kcmp 312 272,
perf_event_open 298 241, bpf 321 280, userfaultfd 323 282, io_uring_setup 425 425"""
_MOUNTS = """
mount 165 40, umount2 166 39, unshare 272 97, setns 308 268, pivot_root 155 41, chroot 161 51,
open_tree 428 428, move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433,
mount_setattr 442 442, name_to_handle_at 303 264, open_by_handle_at 304 265"""
_PROCESSES = "fork 57 -, vfork 58 -, execve 59 221, execveat 322 281"
_SHARED = """
keyctl 250 219, add_key 248 217, request_key 249 218, flock 73 32, inotify_init 253 -, inotify_init1 294 26,
fanotify_init 300 262, mq_open 240 180, msgget 68 186, semget 64 190, setpriority 141 140,
getpriority 140 141, ioprio_set 251 30, ioprio_get 252 31, tkill 200 130, move_pages 279 239,
migrate_pages 256 238"""
# The process is the first argument.
_OF_A_PROCESS = """
kill 62 129, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240, get_robust_list 274 100,
sched_setaffinity 203 122, sched_getaffinity 204 123, sched_setscheduler 144 119,
sched_getscheduler 145 120, sched_setparam 142 118, sched_getparam 143 121, sched_setattr 314 274,
sched_getattr 315 275, sched_rr_get_interval 148 127, prlimit64 302 261, getpgid 121 155, getsid 124 156,
setpgid 109 154"""
_CLOCKS = "clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115, timer_create 222 107"
_CLONE, _CLONE3, _SOCKET, _FCNTL = "clone 56 220", "clone3 435 435", "socket 41 198", "fcntl 72 25"

_SECCOMP = "seccomp 317 277"
_CLONE_THREAD = 0x10000
_FAMILIES = (2, 10, 16)  # IPv4, IPv6, and netlink, which lists the interfaces
_LOCKS = (5, 6, 7, 8, 10, 15, 36, 37, 38, 1024, 1025, 1026)  # of fcntl: locks, leases, signals
_LOW = 0xFFFFFFFF
_X32 = 0x40000000  # added to a number it names the same call
_LOAD, _AND, _EQUAL, _AT_LEAST, _END = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW = (_END, 0, 0, 0x7FFF0000)
Instruction = tuple[int, int, int, int]  # code, how many to skip if true, if false, value


def filter_descriptor() -> int:
    """Return a descriptor from which bubblewrap reads a sandbox's filter (`--seccomp`)."""
    out, into = os.pipe()
    if MACHINE is not None:
        os.write(into, _of_sandbox())
    os.close(into)
    return out


def refuse_in_sandbox() -> None:
    """Give this process the filter that bubblewrap gives to a sandbox's command. Raises: OSError."""
    if MACHINE is not None:
        _install(_of_sandbox())


def _of_sandbox() -> bytes:
    return _program(_refuse(_HIDDEN_MEMORY, errno.ENOSYS))


def refuse_in_rank(processes: bool) -> None:
    """Refuse to this process, for good and in all its threads, what reaches others than through sockets.

    `processes`: the exercise starts some, and may signal and trace those.

    Raises: OSError if the kernel takes no filter, or this machine's calls are not known here.
    """
    if MACHINE is None:
        raise OSError(errno.ENOSYS, f"system calls of {platform.machine()} are not known")
    rules = _refuse(_OTHERS_MEMORY + "," + _MOUNTS)
    if not processes:
        own = os.getpid()
        clock = ~own << 3  # how the kernel writes a process's clock
        rules += _refuse(_PROCESSES + "," + _SHARED) + _refuse(_CLONE3, errno.ENOSYS)  # libc tries clone then
        rules += _only(_CLONE, 0, (_CLONE_THREAD,), mask=_CLONE_THREAD)
        rules += _only(_SOCKET, 0, _FAMILIES)
        rules += _only(_OF_A_PROCESS, 0, (0, own, -own & _LOW))
        rules += _only(_CLOCKS, 0, (0, 8, clock & _LOW, ~7 & _LOW), mask=~7 & _LOW)
        rules += _only(_FCNTL, 1, _LOCKS, refused=True)
    _install(_program(rules))


def _install(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))

    libc = ctypes.CDLL(None, use_errno=True)
    filled = Program(len(program) // 8, program)
    of_all_threads, set_filter, no_new_privileges = 1, 1, 38
    libc.prctl(no_new_privileges, 1, 0, 0, 0)
    number = _numbers(_SECCOMP)[0]
    if libc.syscall(number, set_filter, of_all_threads, ctypes.byref(filled)) != 0:
        raise OSError(ctypes.get_errno(), "the kernel takes no filter of system calls")


def _numbers(calls: str) -> list[int]:
    assert MACHINE is not None
    found = (call.split()[MACHINE[1]] for call in calls.split(","))
    return [int(number) for number in found if number != "-"]


def _refuse(calls: str, error: int = errno.EPERM) -> list[Instruction]:
    return [i for number in _numbers(calls) for i in ((_EQUAL, 0, 1, number), _refusal(error))]


def _only(
    calls: str, argument: int, values: Iterable[int], *, mask: int = _LOW, refused: bool = False
) -> list[Instruction]:
    """Allow calls with these values of an argument only; `refused`: refuse them with these values only."""
    listed = list(values)
    ends = [_ALLOW, _refusal()] if refused else [_refusal(), _ALLOW]
    tests = [(_EQUAL, len(listed) - i, 0, value) for i, value in enumerate(listed)]
    block = [(_LOAD, 0, 0, 16 + 8 * argument), (_AND, 0, 0, mask), *tests, *ends]
    return [i for number in _numbers(calls) for i in ((_EQUAL, 0, len(block), number), *block)]


def _refusal(error: int = errno.EPERM) -> Instruction:
    return (_END, 0, 0, 0x00050000 | error)


def _program(rules: list[Instruction]) -> bytes:
    """Return the filter: calls of another architecture, whose numbers differ, are refused."""
    assert MACHINE is not None
    head: list[Instruction] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, MACHINE[0]),
        _refusal(errno.ENOSYS),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        _refusal(errno.ENOSYS),
    ]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in (*head, *rules, _ALLOW))
