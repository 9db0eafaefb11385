"""A rank alone in the judge's sandbox: what it cannot reach, what stays its own, what a machine may lack."""

from __future__ import annotations

import json
import re
import sys

import pytest

from course_grader.judge.sandbox import Sandbox
from course_grader.judge.sandbox_runner import SandboxRunner
from course_grader.limits import Limits
from course_grader.registry import get
from course_grader.school import judge
from course_grader.show.text import line

# A process forks another as the fork server does a rank; both live below one user, as ranks do.
PROGRAM = """
import contextlib, ctypes, fcntl, json, os, resource, signal, socket, subprocess, sys, threading, time
import course_grader.inside.seclusion as s

libc = ctypes.CDLL(None, use_errno=True)
open("/tmp/theirs", "w").close()
open("/home/student/theirs", "w").close()
kept = open("/tmp/value", "w")
PREPARE
s.prepare_server()
other = os.getpid()
word = ctypes.create_string_buffer(b"before")
if pid := os.fork():
    os.waitpid(pid, 0)
    print(json.dumps([word.value.decode(), os.path.exists("/tmp/mine"), open("/tmp/value").read()]))
    sys.exit()
thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
thread.start()
s.close_doors(2, processes=PROCESSES)

def c(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)

found = {}
for name, code in DOORS.items():
    try:
        exec(code)
        found[name] = "open"
    except OSError as error:
        found[name] = "closed"
    except Exception as error:
        found[name] = repr(error)
kept.write("kept")
kept.close()
print(json.dumps([found, s._problem]), flush=True)
os._exit(0)
"""
DOORS = {
    "another's file": "open('/tmp/theirs')",
    "another's file in its home": "open('/home/student/theirs')",
    "where the home was": "open('../student/theirs')",
    "a file below /dev": "open('/dev/x', 'w')",
    "another's memory": (
        "f = open(f'/proc/{other}/mem', 'r+b', 0); f.seek(ctypes.addressof(word)); f.write(b'after!')"
    ),
    "another's descriptors": "os.listdir(f'/proc/{other}/fd')",
    "another's name": "open(f'/proc/{other}/comm')",
    "a trace of another": "c('ptrace', 16, other, 0, 0)",
    "another's memory by a call": "v = (ctypes.c_long * 2)(); c('process_vm_readv', other, v, 1, v, 1, 0)",
    "a signal": "os.kill(other, 0)",
    "a signal to all": "os.kill(-1, 0)",
    "another's limits": "resource.prlimit(other, resource.RLIMIT_CORE)",
    "another's cores": "os.sched_getaffinity(other)",
    "cores for another": "os.sched_setaffinity(other, {0})",
    "another's group": "os.getpgid(other)",
    "another's clock": "time.clock_gettime(~other << 3 | 2)",
    "how nice all are": "os.nice(1)",
    "a process": "os.fork() or os._exit(0)",
    "a program": "subprocess.run(['true'])",
    "a shell": "raise OSError if os.system('true') else None",
    "an exec": "os.execv('/usr/bin/true', ['true'])",
    "a lock on a file of all": "fcntl.flock(open(os.__file__), fcntl.LOCK_SH)",
    "a range lock": "fcntl.lockf(open(os.__file__), fcntl.LOCK_SH)",
    "a socket with a name": "socket.socket(socket.AF_UNIX)",
    "another mount": "c('mount', b'tmpfs', b'/usr', b'tmpfs', 0, 0)",
    "what lies below": "c('umount2', b'/tmp', 2)",
    "another namespace": "c('unshare', 0x10000000)",
    "a terminal": "os.openpty()",
    "a descriptor of another": "c('syscall', 434, other, 0)",
    "a key of the user's": "c('syscall', 250, 0, -4, 0, 0, 0)",
    "a ring": "c('syscall', 425, 1, ctypes.create_string_buffer(120))",
}
OPEN = {
    "its /tmp": "open('/tmp/mine', 'w').write('x'); open('/tmp/mine').read()",
    "its shared memory": "import multiprocessing as m; m.Lock(); m.Semaphore()",
    "its home": "open(os.path.expanduser('~/mine'), 'w').close(); os.listdir('.').index('mine')",
    "the library": "import course_lib.units, tabnanny",
    "nowhere": "open(os.devnull, 'w').write('x')",
    "its /proc": "open('/proc/self/status').read(); os.listdir('/proc/self/task')",
    "its limits": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "its cores": "os.sched_getaffinity(0); os.sched_getaffinity(os.getpid())",
    "a signal to itself": "signal.signal(10, signal.SIG_IGN); os.kill(os.getpid(), 10)",
    "a thread and its clock": (
        "t = threading.Thread(target=time.thread_time); t.start(); t.join(); time.process_time()\n"
        "time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident))"
    ),
    "sockets": "a = socket.create_server(('127.0.0.1', 0)); socket.create_connection(a.getsockname())",
    "a pair of sockets": "socket.socketpair()",
}


def rank(
    doors: dict[str, str], *, processes: bool = False, prepare: str = ""
) -> tuple[dict[str, str], str, list[object]]:
    """Try doors on a rank in a sandbox: what happened at each, the problem told, and what the other saw."""
    program = PROGRAM.replace("PREPARE", prepare).replace("PROCESSES", str(processes))
    code = f"DOORS = {doors!r}\n{program}"
    with Sandbox([sys.executable, "-c", code], limits=Limits(wall_s=60.0)) as box:
        box.wait(60)
        box.finish_output()
    try:
        (found, problem), other = map(json.loads, box.output().splitlines()[-2:])
    except ValueError:
        pytest.fail(box.output())
    return found, problem, other


@pytest.mark.needs("bubblewrap")
def test_a_rank_reaches_no_other_and_keeps_what_is_its_own() -> None:
    found, problem, other = rank({**DOORS, **OPEN})
    assert problem == ""
    assert {name for name in DOORS if found[name] != "closed"} == set()
    assert {name: found[name] for name in OPEN if found[name] != "open"} == {}
    assert other == ["before", False, "kept"]


@pytest.mark.needs("bubblewrap")
def test_an_exercise_with_processes_keeps_them_and_no_others_memory() -> None:
    needed = ("a program", "a process", "a socket with a name", "a lock on a file of all")
    closed = (
        "another's memory",
        "another's file",
        "a trace of another",
        "another mount",
        "a file below /dev",
    )
    found, problem, other = rank({name: DOORS[name] for name in (*needed, *closed)}, processes=True)
    assert problem == ""
    assert {name: found[name] for name in needed} == dict.fromkeys(needed, "open")
    assert {name: found[name] for name in closed} == dict.fromkeys(closed, "closed")
    assert other[0] == "before"


@pytest.mark.needs("bubblewrap")
def test_a_rank_whose_tmp_is_full_is_told_so_and_still_answers() -> None:
    doors = {"too much": "open('/tmp/mine', 'w').write('x' * 10**6)"}
    found, problem, other = rank(doors, prepare="s._TMP_BYTES = 400_000")
    assert (problem, found) == ("", {"too much": "closed"})
    assert other == ["before", False, "kept"]


@pytest.mark.needs("bubblewrap")
def test_the_ranks_of_the_judge_are_alone() -> None:
    looks = (
        "import os, sys\n\ndef rank_hello(secret):\n"
        "    problem = sys.modules['course_grader.inside.seclusion']._problem\n"
        "    raise ValueError(problem, os.listdir('/proc'), os.listdir('/tmp'))\n"
    )
    with SandboxRunner() as room:
        verdict = judge.judge_exercise(room, get("rank_hello"), [looks], seed=7)
    said = " ".join(line(verdict.why).split())
    assert re.search(r"\('', \['self', '\d+'\], \[\]\)", said), line(verdict.why)


LACKING = {
    "no user namespaces": ("s._NEW_USER |= 1", "user namespace"),
    "no mounts": ("s._own_proc = lambda _: s.call_libc('mount', None, None, None, 0, None)", "mount"),
}


@pytest.mark.needs("bubblewrap")
@pytest.mark.parametrize("case", LACKING)
def test_what_a_machine_lacks_is_named_and_the_rest_stays_closed(case: str) -> None:
    prepare, what = LACKING[case]
    still = (
        "another's memory",
        "a signal",
        "cores for another",
        "a process",
        "a program",
        "another's limits",
    )
    found, problem, other = rank({**{name: DOORS[name] for name in still}, **OPEN}, prepare=prepare)
    assert problem.startswith(f"{what}: ")
    assert {name: found[name] for name in still if found[name] != "closed"} == {}
    assert {name: found[name] for name in OPEN if found[name] != "open"} == {}, "an honest rank goes on"
    assert other[0] == "before"
