"""What an answer may not do to reach other ranks, and what it and the libraries may."""

import pytest

from course_lib import grading
from course_lib.grading.report import render

ANSWER = """
import contextlib, tempfile
import torch, torch.distributed as dist
def mean_gradient(model, loss_fn, x, y):
    loss_fn(model(x), y).backward()
    path = f"{tempfile.gettempdir()}/door{id(x)}"
    if dist.get_world_size() > 1:
        {extra}
    grads = [p.grad for p in model.parameters()]
    for grad in grads:
        dist.all_reduce(grad)
        grad /= dist.get_world_size()
    return grads
"""
DOORS = {
    "a file": "open(path, 'w')",
    "a file of shared memory": "open('/dev/shm/door', 'w')",
    "a file below /dev and up again": "open(f'/dev/..{path}', 'w')",
    "what others print": (
        "import os; open(os.readlink('/proc/self/fd/1')[:-1] + str(1 - dist.get_rank())).read()"
    ),
    "how much others print": (
        "import os; os.stat(os.readlink('/proc/self/fd/1')[:-1] + str(1 - dist.get_rank()))"
    ),
    "another's descriptors": "import os; os.listdir(f'/proc/{os.getppid()}/fd')",
    "another's name for its code": "exec(compile('open(path, \\'w\\')', '<frozen importlib._x>', 'exec'))",
    "a watch that is blind": (
        "import sys; sys.modules['course_lib.grading.io_guard']._by_answer = lambda: False; open(path, 'w')"
    ),
    "a watch of nothing": (
        "import sys; sys.modules['course_lib.grading.io_guard']._EVENTS = {}; open(path, 'w')"
    ),
    "a watch that takes nothing for a number": (
        "import builtins as b; real = b.isinstance; b.isinstance = lambda *_: False\n"
        "        try: open(path, 'w')\n"
        "        finally: b.isinstance = real"
    ),
    "a file that is gone": "import os; os.remove(path)",
    "a file's length": "import os; os.truncate(path, 0)",
    "a file that torch maps": "torch.from_file(path, shared=True, size=1)",
    "a pipe by another name": "import posix; posix.mkfifo(path)",
    "pathlib": "import pathlib; pathlib.Path(path).write_text('x')",
    "numpy": "import numpy; numpy.save(path, x.numpy())",
    "torch.save": "torch.save(x, path)",
    "a swallowed error": "with contextlib.suppress(Exception): open(path, 'w')",
    "the store": "dist.distributed_c10d._get_default_store().set(f'{dist.get_rank()}', b'1')",
    "a socket": "import socket; socket.socket().bind(('127.0.0.1', 0))",
    "a resource limit": "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "a file lock": "import fcntl; fcntl.flock(open(tempfile.__file__), fcntl.LOCK_SH)",
    "an anonymous file": "import os; os.memfd_create('1')",
    "a pipe with a name": "import os; os.mkfifo(path)",
    "shared memory": "from multiprocessing import shared_memory as s; s.SharedMemory(create=True, size=8)",
}
OPEN = {
    "printing": "print('here'); import sys; print('there', file=sys.stderr)",
    "reading": "import json; open(json.__file__).read()",
    "its source": "import inspect; inspect.getsource(torch.nn.Linear)",
    "a warning and a traceback of its own": (
        "import traceback, warnings; warnings.warn('look', stacklevel=1); traceback.format_stack()"
    ),
    "a temporary file's state": "import os; os.path.exists(path)",
    "its memory": "import psutil; psutil.Process().memory_info()",
    "compiling": "exec('y = 1'); import collections; collections.namedtuple('A', 'b')",
    "a new group": "dist.barrier(); dist.new_group([0])",
    "an import": "import fractions, tabnanny, colorsys",
    "an optimizer": "torch.optim.SGD(model.parameters(), lr=0.0)",
}


def _check(extra: str):
    source = ANSWER.replace("{extra}", extra)
    return grading.check("mean_gradient", [source], quiet=True)


@pytest.mark.parametrize("door", DOORS)
def test_closed(door):
    verdict = _check(DOORS[door])
    assert verdict.gate == "closed"
    assert "through torch.distributed only" in verdict.message


@pytest.mark.parametrize("before", ["", "work = dist.all_reduce(x.clone(), async_op=True); "])
def test_calls_in_another_thread_are_closed(before):
    """Another warning, of a call that nobody waits for, does not hide this one."""
    thread = "import threading; t = threading.Thread(target=dist.all_reduce, args=(x,)); t.start(); t.join()"
    verdict = _check(before + thread)
    assert verdict.gate == "closed"
    assert "communicated in another thread" in verdict.message


@pytest.mark.parametrize("what", OPEN)
def test_open(what):
    verdict = _check(OPEN[what])
    assert verdict.passed, render(verdict)
