"""torchrun without loading torch: a rank forks what is to be torchrun before it has anything of a check.

The fork waits for torchrun's arguments, then forgets that it was a rank. A rank does this before it joins a
group: later it has threads, and its functions are watched.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from multiprocessing import forkserver, process, resource_tracker
from typing import Any

from course_grader.inside.forked import Waiting
from course_lib.ranks import rank

waiting: Waiting | None = None  # in a rank whose program starts torchrun


def fork(follow: Callable[[], None]) -> None:
    """Fork what is to be torchrun, and keep it in `waiting`; it calls `follow` when it begins."""
    global waiting
    waiting = Waiting(lambda told: _be_torchrun(follow, *told))


def _be_torchrun(
    follow: Callable[[], None], arguments: list[str], folder: str, environment: dict[str, str]
) -> None:
    follow()
    _forget_the_rank()
    _redirect(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    importlib.import_module("course_grader.inside.torchrun_agent").main()


def _redirect(folder: str) -> None:
    os.chdir(folder)
    output = os.open("agent.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, fd in ((0, nothing), (1, output), (2, output)):
        os.dup2(fd, number)
    for fd in (output, nothing):
        os.close(fd)


def _forget_the_rank() -> None:
    """Be as a fresh interpreter is, in what a rank sets before it joins a group."""
    rank.is_rank = False
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    own: Any = process  # the folder of the rank's process for sockets goes with it: no rank can write there
    kinds = {kind.__name__: kind for kind in own.BaseProcess.__subclasses__()}
    own._current_process, own._parent_process = kinds["_MainProcess"](), None
    server: Any = forkserver._forkserver
    server._forkserver_alive_fd = server._forkserver_address = server._inherited_fds = None
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = tracker._pid = None
