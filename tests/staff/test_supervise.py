"""Long commands beside each other: a limit, a death, and an end for all of them."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import psutil
import pytest

from course_grader.school.supervise import Ended, module, run_all

STARTS_ANOTHER = """
import os, pathlib, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
time.sleep(300)
"""
DIES = "import os, sys; print('line one'); print('out of memory?', flush=True); os.kill(os.getpid(), 9)"
FAILS = "import sys; sys.exit('the notebook is missing')"


def python(source: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", source, *map(str, arguments)]


def ends(commands: dict[str, list[str]], logs: Path, limit_s: float = 60.0) -> dict[str, Ended]:
    return {one.name: one for one in run_all(commands, logs, jobs=2, limit_s=limit_s)}


def running(pids: str) -> list[int]:
    """Return who of `pids` has not ended."""
    found = [int(pid) for pid in pids.split() if psutil.pid_exists(int(pid))]
    return [pid for pid in found if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def test_what_dies_is_named_with_its_last_words_and_the_others_go_on(tmp_path: Path) -> None:
    commands = {"dies": python(DIES), "fails": python(FAILS), "fine": python("print(1)")}
    ended = ends(commands, tmp_path)
    assert ended["fine"].why == ""
    assert ended["dies"].why == (
        f"it was ended by signal 9. {tmp_path}/dies.log ends with\n  line one\n  out of memory?"
    )
    assert ended["fails"].why == (
        f"it ended with status 1. {tmp_path}/fails.log ends with\n  the notebook is missing"
    )


def test_a_limit_ends_all_that_a_command_has_started(tmp_path: Path) -> None:
    """The limit is long enough for a Python to start, and no more is asked of it."""
    pids = tmp_path / "pids"
    why = ends({"sleeps": python(STARTS_ANOTHER, pids)}, tmp_path, limit_s=5.0)["sleeps"].why
    assert why.startswith("it was stopped after its 5 s; run it again with less to do on this machine. ")
    assert why.endswith("sleeps.log says nothing")
    assert not pids.exists() or running(pids.read_text()) == []


def test_leaving_ends_what_still_runs_and_its_temporary_files(tmp_path: Path) -> None:
    writes = "import tempfile; print(tempfile.mkdtemp())"
    pids = tmp_path / "pids"
    commands = {"fine": python(writes), "sleeps": python(STARTS_ANOTHER, pids)}
    with contextlib.closing(run_all(commands, tmp_path, jobs=2, limit_s=60.0)) as runs:
        assert next(runs).name == "fine"
    assert not pids.exists() or running(pids.read_text()) == []
    assert not os.path.exists((tmp_path / "fine.log").read_text().strip())


def test_who_has_lost_its_parent_ends(tmp_path: Path) -> None:
    """A process whose parent is another than it was told, as after `kill -9` of the command."""
    code = "from course_grader.school.supervise import end_with; import time; end_with(1); time.sleep(300)"
    ended = ends({"orphan": python(code)}, tmp_path)
    assert ended["orphan"].why.startswith("it ended with status 1.")


def test_a_module_is_told_who_supervises() -> None:
    assert module("a.b", Path("c"), 3) == [sys.executable, "-m", "a.b", str(os.getpid()), "c", "3"]


@pytest.mark.parametrize("jobs", [1, 3])
def test_each_command_is_run_once(tmp_path: Path, jobs: int) -> None:
    commands = {f"number {n}": ["echo", str(n)] for n in range(4)}
    ended = list(run_all(commands, tmp_path, jobs=jobs, limit_s=60.0))
    assert sorted(one.name for one in ended) == list(commands)
    assert [(tmp_path / f"{name}.log").read_text() for name in commands] == ["0\n", "1\n", "2\n", "3\n"]
