"""torchrun without loading torch: a rank forks what is to be torchrun before it has anything of a check.

The fork waits for torchrun's arguments, then forgets that it was a rank. A rank does this before it joins a
group: later it has threads, and its functions are watched.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import forkserver, process, resource_tracker
from pathlib import Path
from typing import Any, NoReturn

from course_lib.ranks import rank


class Waiting:
    """What is to be torchrun; it has the methods of `subprocess.Popen` that `torchrun` calls."""

    returncode: int | None = None

    def __init__(self, follow: Callable[[], None]) -> None:
        """Fork; the fork calls `follow` when it begins."""
        waits, self._tell = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _wait_and_be_torchrun(waits, follow)
        os.close(waits)

    def begin(self, arguments: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        """Let it begin, with torchrun's arguments."""
        text = json.dumps([list(arguments), str(folder), environment]).encode()
        with os.fdopen(self._tell, "wb") as told:
            told.write(text)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit status. Raises: subprocess.TimeoutExpired."""
        end_s = math.inf if timeout is None else time.monotonic() + timeout
        while self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end_s:
                raise subprocess.TimeoutExpired("torchrun", timeout or 0.0)
            else:
                time.sleep(0.01)
        return self.returncode

    def kill(self) -> None:
        """End it."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


waiting: Waiting | None = None  # in a rank whose program starts torchrun


def _wait_and_be_torchrun(waits: int, follow: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        os.dup2(waits, 3)
        os.closerange(4, os.sysconf("SC_OPEN_MAX"))
        with os.fdopen(3, "rb") as told:
            text = told.read()
        if text:
            arguments, folder, environment = json.loads(text)
            follow()
            _forget_the_rank()
            _redirect(folder)
            os.environ.clear()
            os.environ.update(environment)
            sys.argv = ["-c", *arguments]
            importlib.import_module("course_lib.grading.torchrun_agent").main()
            status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


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
