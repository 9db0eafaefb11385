"""The judge's side of zygotes: this process's own, started when first asked for, ended with it.

`course_grader.inside.zygote` says what they are. Where a machine lets no process join a sandbox, a sandbox
starts a Python of its own instead: seconds later, and otherwise the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from course_grader.inside.import_guard import JUDGE_SIDE
from course_grader.inside.page_kernel import LOADED as PAGE_MODULES
from course_grader.inside.zygote import FREE, MAX_REQUEST, Entry
from course_lib.ranks.forkserver import preloaded

# Never needed where student code runs: oracles and hidden sizes, the instructor's side, the zoo's sources.
HIDDEN = (*JUDGE_SIDE, *(f"course_grader.{room}" for room in ("authoring", "pages", "school", "zoo")))
LOADED_S = 120.0  # to load torch, on a machine that is busy
PAGE_ENVIRONMENT = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    "JUPYTER_PLATFORM_DIRS": "1",
}
_ENTERED_S = 30.0


class CannotEnter(Exception):
    """No process of this zygote gets into a sandbox here; the text says why."""


class Zygote:
    """A process that has loaded modules; it ends when this process does."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests
        self._lock = threading.Lock()
        self._is_loaded: bool | None = None
        self._has_entered = False
        self.problem = ""  # why nothing can enter here

    @classmethod
    def start(cls, modules: Sequence[str]) -> Zygote:
        """Start one; it loads `modules` meanwhile."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        zygote = cls(ours)
        with theirs:
            told = [str(theirs.fileno()), ",".join(HIDDEN), *modules]
            try:
                process = subprocess.Popen(
                    [sys.executable, "-m", "course_grader.inside.zygote", *told],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                    env={**base_environment(), "HOME": _home().name},
                )
                process.returncode = 0  # nobody waits for it
            except OSError as error:
                zygote.problem = str(error)
        return zygote

    def with_modules(self, modules: Sequence[str], environment: Mapping[str, str]) -> Zygote:
        """Fork one that loads these too, with these variables."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._send({"load": list(modules), "environment": dict(environment)}, [theirs.fileno()])
        return Zygote(ours)

    def enter(self, entry: Entry, ended: int, output: int, own: Sequence[int]) -> int:
        """Start what `entry` says. Returns its pid as this machine numbers it.

        `ended` is told its exit status; `output` takes what it prints; `own` are its descriptors.

        Raises: CannotEnter.
        """
        if self.problem or max(own, default=0) >= FREE:
            raise CannotEnter(self.problem or "a descriptor has too high a number")
        told, started = os.pipe()
        with os.fdopen(told, "rb", buffering=0) as answer:
            try:
                self._send(dataclasses.asdict(entry), [started, ended, output, *own])
            finally:
                os.close(started)
            ready, _, _ = select.select([answer], [], [], _ENTERED_S)
            text = answer.read(1000).decode() if ready else ""
        if not text.isdigit():
            if not self._has_entered or not text:
                self.problem = text or "the zygote has ended"
            raise CannotEnter(text)
        self._has_entered = True
        return int(text)

    def _send(self, request: dict[str, object], fds: list[int]) -> None:
        """Send a request, or nothing if the zygote has ended: its answer does not come then, either."""
        with self._lock, contextlib.suppress(OSError):
            if self._is_loaded is None:
                self._requests.settimeout(LOADED_S)
                self._is_loaded = self._requests.recv(10) == b"ready"
            text = json.dumps(request).encode()
            if self._is_loaded and len(text) < MAX_REQUEST:
                socket.send_fds(self._requests, [text], fds)


@functools.cache
def of_ranks() -> Zygote:
    """Return the zygote of the sandboxes where ranks run."""
    *first, last = preloaded()
    return Zygote.start([*first, "course_grader.inside.sandbox_worker", last])


@functools.cache
def of_pages() -> Zygote:
    """Return the zygote of the sandboxes where the notebooks of feedback pages run."""
    return of_ranks().with_modules(PAGE_MODULES, PAGE_ENVIRONMENT)


def base_environment() -> dict[str, str]:
    """Return the environment of what runs in a sandbox, but for its home."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONSAFEPATH": "1",  # no module comes from a folder that a student can write to
        "OMP_NUM_THREADS": "1",
    }


@functools.cache
def _home() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that lives as long as this process, for what libraries note down when they load."""
    return tempfile.TemporaryDirectory(prefix="course_zygote_")
