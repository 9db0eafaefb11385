"""Run a few long commands at a time, each with a log and a limit: none can hang, or take the others along.

Each command is a session of its own, so Ctrl-C reaches the supervisor only. The supervisor ends a command and
everything it started at its limit, and when the caller leaves.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from course_grader.kernels import end_processes

LAST_LINES = 8
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended.

    Attributes:
        why: what was wrong, with the last lines of its log; "" if nothing was.
    """

    name: str
    seconds: float
    why: str


@dataclass
class _Running:
    name: str
    log: Path
    process: subprocess.Popen[bytes]
    start_s: float = field(default_factory=time.monotonic)

    def seconds(self) -> float:
        return time.monotonic() - self.start_s

    def ended(self, limit_s: float) -> Ended | None:
        """Return how it ended; None while it may go on."""
        code = self.process.poll()
        if code is None and self.seconds() < limit_s:
            return None
        why = ""
        if code is None:
            self.end()
            why = f"it was stopped after its {limit_s:.0f} s; run it again with less to do on this machine"
        elif code:
            why = f"it was ended by signal {-code}" if code < 0 else f"it ended with status {code}"
        return Ended(name=self.name, seconds=self.seconds(), why=why and f"{why}. {last_lines(self.log)}")

    def end(self) -> None:
        if self.process.poll() is None:
            end_processes(self.process.pid)
            self.process.wait()


def run_all(
    commands: Mapping[str, Sequence[str]], logs: Path, *, jobs: int, limit_s: float
) -> Generator[Ended]:
    """Run `commands` by name, `jobs` at a time, and yield each as it ends; logs go to `logs`/NAME.log.

    Close the iterator, or leave it by an exception, and what still runs is ended.
    """
    waiting = list(commands)
    running: list[_Running] = []
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="course-", ignore_cleanup_errors=True)
        variables = {**os.environ, "TMPDIR": stack.enter_context(folder)}  # leave nothing of a killed command
        while waiting or running:
            while waiting and len(running) < jobs:
                name = waiting.pop(0)
                running.append(_start(name, commands[name], logs / f"{name}.log", variables))
                stack.callback(running[-1].end)
            for one in list(running):
                if ended := one.ended(limit_s):
                    running.remove(one)
                    yield ended
            time.sleep(_POLL_S)


def _start(name: str, command: Sequence[str], log: Path, variables: Mapping[str, str]) -> _Running:
    with open(log, "wb") as out:
        quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
        process = subprocess.Popen(command, **quiet, start_new_session=True, env=variables)
    return _Running(name=name, log=log, process=process)


def last_lines(log: Path) -> str:
    """Return where a log is and how it ends."""
    with contextlib.suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LAST_LINES:]
        if lines:
            return "\n".join([f"{log} ends with", *(f"  {line}" for line in lines)])
    return f"{log} says nothing"


def end_with(parent: int) -> None:
    """End this process and all it has started when its parent, who supervises, ends without a word."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        for child in psutil.Process().children():
            end_processes(child.pid)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def module(name: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of the course; its first argument is who supervises."""
    return [sys.executable, "-m", name, str(os.getpid()), *map(str, arguments)]
