"""A student's day in a real JupyterLab: `make browser`, or `make browser LAB=all` for every lab.

Not part of `make test`: it needs a Chromium. The screenshots in build/browser/ are there to be looked at.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_page import Notebook, server, wait_for
from playwright.sync_api import Browser

from course_lib.staff.execute import without_outputs

ROOT = Path(__file__).resolve().parents[2]
LAB = "00_start_here"
EXERCISE = "rank_hello"
HANG = """\
import time
from course_lib.comm.launch import run_ranks
def sleeps():
    print("asleep", flush=True)
    time.sleep(10_000)
run_ranks(sleeps, 2)"""


def source_of(lab: str, cell_id: str) -> str:
    """Return the reference answer of an exercise, without the lines that mark it."""
    notebook = nbformat.read(ROOT / "solutions" / lab / f"{lab}.ipynb", as_version=4)
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    return "\n".join(line for line in cell.source.splitlines() if "### " not in line)


def places(path: Path) -> dict[str, int]:
    """Return where each cell of a notebook file stands."""
    return {cell.id: i for i, cell in enumerate(nbformat.read(path, as_version=4).cells)}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory, chromium: Browser) -> Iterator[Notebook]:
    """The released lab 00, opened as a student opens it."""
    folder, private = tmp_path_factory.mktemp("course"), tmp_path_factory.mktemp("private")
    path = Path(shutil.copy(ROOT / "notebooks" / LAB / f"{LAB}.ipynb", folder))
    with server(folder, private) as address:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        yield Notebook(page, path, address)
        page.close()


def test_an_exercise_turns_from_red_to_green(released: Notebook, pictures: Path) -> None:
    at = places(released.path)[EXERCISE]
    for index in range(at + 1):
        if released.is_code(index):
            released.run(index)
    report = released.run(at + 2)
    assert "not written yet" in report.inner_text()
    released.fill(at, source_of(LAB, EXERCISE))
    released.run(at)
    report = released.run(at + 2)
    assert report.inner_text().startswith(f"PASS  {EXERCISE}  2/2"), report.inner_text()
    released.cell(at).screenshot(path=pictures / "exercise.png")
    released.save()
    saved = next(cell for cell in nbformat.read(released.path, as_version=4).cells if cell.id == EXERCISE)
    assert saved.source == source_of(LAB, EXERCISE)


def test_a_hanging_cell_is_stopped_and_the_kernel_lives(released: Notebook) -> None:
    at = places(released.path)["test_" + EXERCISE]
    released.select(at)
    released.page.keyboard.press("Escape")
    released.page.keyboard.press("b")  # a new cell below
    new = at + 1
    for program in (HANG, "while True:\n    pass"):
        released.fill(new, program)
        released.start(new)
        wait_for(lambda: "[*]" in released.cell(new).inner_text(), 60, "the cell runs")
        time.sleep(1)  # well inside of it
        released.interrupt()
        released.finish(new)
        assert "KeyboardInterrupt" in released.output(new).inner_text()
    released.fill(new, f"print({EXERCISE}.__name__, 6 * 7)")
    assert f"{EXERCISE} 42" in released.run(new).inner_text()
    released.select(new)
    for key in ("Escape", "d", "d"):  # away with it
        released.page.keyboard.press(key)


def test_nbgraders_button_validates(released: Notebook, pictures: Path) -> None:
    released.page.locator(".jp-NotebookPanel-toolbar").get_by_text("Validate", exact=True).click()
    dialog = released.page.locator(".jp-Dialog")
    dialog.wait_for()
    released.page.screenshot(path=pictures / "validate.png")
    assert "Validation Results" in dialog.inner_text()
    dialog.locator("button").last.click()
    dialog.wait_for(state="detached")


def test_nothing_was_complained_of(released: Notebook) -> None:
    assert released.complaints == []


def test_a_lab_runs_from_top_to_bottom(
    lab_name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, chromium: Browser, pictures: Path
) -> None:
    notebook = nbformat.read(ROOT / "solutions" / lab_name / f"{lab_name}.ipynb", as_version=4)
    path = tmp_path / f"{lab_name}.ipynb"
    nbformat.write(without_outputs(notebook), path)
    private = tmp_path_factory.mktemp("private")
    with server(tmp_path, private) as address:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        started = time.monotonic()
        opened = Notebook(page, path, address)
        open_s = time.monotonic() - started
        run_s = opened.run_all()
        print(f"{lab_name}: open after {open_s:.0f} s, ran in {run_s:.0f} s")
        keep(opened, pictures / lab_name, "light")
        assert opened.errors() == []
        assert opened.complaints == []
        page.close()


def keep(opened: Notebook, folder: Path, theme: str) -> None:
    """Write a picture of every figure as the page shows it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, figure in enumerate(opened.figures().all()):
        figure.scroll_into_view_if_needed()
        figure.screenshot(path=folder / f"{theme}-{number:02d}.png")
