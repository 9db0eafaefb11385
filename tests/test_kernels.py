"""A notebook's kernel starts, ends and says what was wrong."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook
from traitlets.config import Config

from course_grader import kernels

DIES = "import sys; sys.exit('ModuleNotFoundError: no kernel here')"
DIES_ONCE = """
import pathlib, runpy, sys
met = pathlib.Path({met!r})
if not met.exists():
    met.touch()
    sys.exit("the address is taken")
runpy.run_module("ipykernel_launcher", run_name="__main__")
"""
STAYS = """
import atexit, os, signal, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
atexit.register(time.sleep, 300)
print(os.getpid())
"""
INTERRUPTED = """
import os, signal, sys
from nbformat.v4 import new_code_cell, new_notebook
from course_grader import kernels

def interrupted(cell_index, **_):
    if cell_index == 1:
        print(book.cells[0].outputs[0].text, flush=True)
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
cells = ["import os; print(os.getpid())", "import time; time.sleep(300)"]
book = new_notebook(cells=[new_code_cell(cell) for cell in cells])
try:
    kernels.run(book, sys.argv[1], on_cell_complete=interrupted)
except KeyboardInterrupt:
    print("KeyboardInterrupt")
"""
STARTS_A_PROCESS = "import subprocess; print(subprocess.Popen(['sleep', '300'], start_new_session=True).pid)"
IN_LAB = {"metadata": {"name": "lab 03"}}


def notebook(*sources: str) -> nbformat.NotebookNode:
    return new_notebook(cells=[new_code_cell(source) for source in sources])


def text(cell: nbformat.NotebookNode) -> str:
    return "".join(output.get("text", "") for output in cell.outputs)


def has_ended(pid: str) -> bool:
    return not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE


@pytest.fixture
def own_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a kernel that runs the file that this fixture returns."""
    folder = tmp_path / "jupyter" / "kernels" / "own"
    folder.mkdir(parents=True)
    argv = [sys.executable, str(tmp_path / "own.py"), "-f", "{connection_file}"]
    spec = {"argv": argv, "display_name": "own", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    return tmp_path / "own.py"


def test_four_at_once_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tempfile.mkdtemp(prefix="k-", dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", place)
    with ThreadPoolExecutor(4) as pool:
        ran = list(pool.map(lambda n: kernels.run(notebook(f"print({n})"), tmp_path), range(4)))
    assert [text(one.cells[0]) for one in ran] == [f"{n}\n" for n in range(4)]
    assert os.listdir(place) == []
    os.rmdir(place)


def test_a_long_name_of_the_temporary_folder_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / ("long" * 25)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    assert text(kernels.run(notebook("print(1)"), tmp_path).cells[0]) == "1\n"


def test_a_limit_names_the_notebook_and_the_cell_and_ends_what_it_started() -> None:
    book = notebook(STARTS_A_PROCESS, "import time; time.sleep(300)")
    book.cells[1].metadata.nbgrader = {"grade_id": "test_sleep"}

    def ends_second(cell_index: int, **_: object) -> None:
        if cell_index == 1:
            run.time_is_up()

    run = kernels.LimitedRun(book, resources=IN_LAB, on_cell_complete=ends_second)
    with pytest.raises(kernels.NotebookStopped) as stopped:
        run.execute()
    said = "lab 03 must be run within 900 s; that time was over while cell 2 (test_sleep) ran. Run it again"
    assert str(stopped.value).startswith(said)
    assert has_ended(text(book.cells[0]))


def test_a_limit_holds_while_the_kernel_starts(tmp_path: Path) -> None:
    with pytest.raises(
        kernels.NotebookStopped, match="within 0 s; that time was over while its kernel start"
    ):
        kernels.run(notebook("1"), tmp_path, limit_s=0.0)


def test_a_kernel_that_dies_in_a_cell_is_reported(tmp_path: Path) -> None:
    book = notebook("1", "import os; os.write(2, b'out of luck'); os._exit(3)")
    with pytest.raises(kernels.NotebookStopped, match=r"the kernel of lab 03 must live .* while cell 2 ran"):
        kernels.run(book, tmp_path, name="lab 03")


def test_a_kernel_that_cannot_start_is_reported_with_its_words(own_kernel: Path, tmp_path: Path) -> None:
    own_kernel.write_text(DIES, encoding="utf-8")
    with pytest.raises(kernels.NotebookStopped) as stopped:
        kernels.run(notebook("1"), tmp_path, name="lab 03", kernel_name="own")
    assert "the kernel of lab 03 must start; twice it did not" in str(stopped.value)
    assert "ModuleNotFoundError: no kernel here" in str(stopped.value)
    assert "Run `course doctor`" in str(stopped.value)


def test_a_kernel_that_did_not_start_is_started_once_more(
    own_kernel: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own_kernel.write_text(DIES_ONCE.format(met=str(tmp_path / "met")), encoding="utf-8")
    log = logging.getLogger("course-test")
    ran = kernels.run(notebook("print(1)"), tmp_path, name="lab 03", kernel_name="own", log=log)
    assert text(ran.cells[0]) == "1\n"
    said = [record.getMessage() for record in caplog.records if "once more" in record.getMessage()]
    assert said == [
        "lab 03: its kernel did not start; it is started once more "
        "(Kernel died before replying to kernel_info the address is taken)"
    ]


def test_ctrl_c_ends_the_run_and_its_kernel(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    pid, end = process.communicate()[0].split()
    assert end == "KeyboardInterrupt"
    assert has_ended(pid)


def test_a_kernel_that_ignores_its_end_is_killed(tmp_path: Path) -> None:
    book = notebook(STAYS)
    kernels.run(book, tmp_path, config=Config(KernelManager={"shutdown_wait_time": 1.0}))
    assert has_ended(text(book.cells[0]))


def test_no_room_for_sockets_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/course-kernel")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    with pytest.raises(kernels.NotebookStopped, match=r"(?s)No space left on device.*Make room in"):
        kernels.run(notebook("1"), tmp_path, name="lab 03")


def test_too_little_room_is_said_before_an_answer_fails_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ROOM_BYTES", 10**18)
    with pytest.raises(kernels.NotebookStopped, match=r"(?s)MB of room; got .*Make room in"):
        kernels.run(notebook("1"), ".", name="lab 03")


def test_a_process_ends_with_all_it_started() -> None:
    script = "sleep 300 & setsid sleep 300 & echo $!; wait"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        last = shell.stdout.readline()
        children = psutil.Process(shell.pid).children(recursive=True)
        kernels.end_processes(shell.pid)
    assert has_ended(last)
    assert all(has_ended(str(child.pid)) for child in children)
