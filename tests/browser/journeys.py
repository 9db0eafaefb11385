"""A student's day in a real JupyterLab: `make browser`, or `make browser LAB=all` for every lab.

Not part of `make test`: it needs a Chromium. The screenshots in build/browser/ are there to be looked at.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from jupyter_page import Notebook, server, wait_for
from playwright.sync_api import Browser

from course_grader import exercises
from course_grader.authoring.execute import without_outputs
from course_lib import IS_PUBLISHED

pytestmark = pytest.mark.needs("chromium")

ROOT = Path(__file__).resolve().parents[2]
HANG = """\
import time
from course_lib.ranks import run_ranks
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
def released(
    lab_name: str, tmp_path_factory: pytest.TempPathFactory, chromium: Browser
) -> Iterator[Notebook]:
    """A released lab, opened as a student opens it."""
    folder, private = tmp_path_factory.mktemp("course"), tmp_path_factory.mktemp("private")
    path = Path(shutil.copy(ROOT / "notebooks" / lab_name / f"{lab_name}.ipynb", folder))
    with server(folder, private) as address:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        yield Notebook(page, path, address)
        page.close()


@pytest.fixture(scope="module")
def exercise(lab_name: str) -> str:
    """The exercise that a student solves first."""
    return exercises(lab_name)[0].id


def test_an_exercise_turns_from_red_to_green(
    released: Notebook, lab_name: str, exercise: str, pictures: Path
) -> None:
    released.page.screenshot(path=pictures / f"{lab_name}-opened.png")
    at, check = (places(released.path)[name] for name in (exercise, f"check-{exercise}"))
    for index in range(at + 1):
        if released.is_code(index):
            released.run(index)
    report = released.run(check)
    assert "not written yet" in report.inner_text()
    answer = source_of(lab_name, exercise)
    released.fill(at, answer)
    released.run(at)
    report = released.run(check)
    assert re.match(rf"✓\s+{exercise}\s", report.inner_text()), report.inner_text()
    released.cell(check).screenshot(path=pictures / f"{lab_name}-solved.png")
    released.save()
    saved = next(cell for cell in nbformat.read(released.path, as_version=4).cells if cell.id == exercise)
    assert saved.source == answer


def test_a_hanging_cell_is_stopped_and_the_kernel_lives(released: Notebook, exercise: str) -> None:
    new = places(released.path)[exercise] + 1
    released.select(new - 1)
    released.page.keyboard.press("Escape")
    released.page.keyboard.press("b")  # a new cell below
    for program in (HANG, "while True:\n    pass"):
        released.fill(new, program)
        released.start(new)
        wait_for(lambda: "[*]" in released.cell(new).inner_text(), 60, "the cell runs")
        time.sleep(1)  # well inside of it
        released.interrupt()
        released.finish(new)
        assert "KeyboardInterrupt" in released.output(new).inner_text()
    released.fill(new, f"print({exercise!r}, 6 * 7)")
    assert f"{exercise} 42" in released.run(new).inner_text()
    released.select(new)
    for key in ("Escape", "d", "d"):  # away with it
        released.page.keyboard.press(key)


def test_nbgraders_button_tells_what_is_not_solved(
    released: Notebook, lab_name: str, exercise: str, pictures: Path
) -> None:
    released.page.locator(".jp-NotebookPanel-toolbar").get_by_text("Validate", exact=True).click()
    dialog = released.page.locator(".jp-Dialog")
    dialog.wait_for()
    released.page.screenshot(path=pictures / f"{lab_name}-validate.png")
    said = dialog.inner_text()
    assert f'"{exercises(lab_name)[1].id}"' in said
    assert f'"{exercise}"' not in said
    dialog.locator("button").last.click()
    dialog.wait_for(state="detached")


def test_the_badge_is_shown_and_nothing_was_complained_of(released: Notebook) -> None:
    if IS_PUBLISHED:  # until then the cell says that there is no address
        badge = released.page.get_by_alt_text("Open in Colab")
        wait_for(lambda: badge.evaluate("picture => picture.naturalWidth") > 0, 60, "the badge is shown")
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
        print(f"\n{lab_name}: open after {open_s:.0f} s, ran in {run_s:.0f} s")
        assert opened.errors() == []
        turn_every_slider(opened)
        look(opened, pictures / lab_name)
        assert opened.complaints == []
        page.close()


def turn_every_slider(opened: Notebook) -> None:
    """Each slider changes the figure below it."""
    for number in range(opened.sliders().count()):
        slider = opened.sliders().nth(number)
        slider.scroll_into_view_if_needed()
        cell = slider.locator("xpath=ancestor::*[contains(concat(' ', @class, ' '), ' jp-CodeCell ')][1]")
        before = cell.locator(".jp-OutputArea-output img").get_attribute("src")
        slider.focus()
        started = time.monotonic()
        slider.press("ArrowRight")
        opened.page.wait_for_function(
            "([cell, before]) => cell.querySelector('.jp-OutputArea-output img').src != before",
            arg=[cell.element_handle(), before],
        )
        print(f"  slider {number}: {1e3 * (time.monotonic() - started):.0f} ms")


def look(opened: Notebook, folder: Path) -> None:
    """Keep a picture of every figure and of the map: light, at 200%, dark; each figure has words and fits."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.png"):
        old.unlink()
    opened.page.keyboard.press("ControlOrMeta+b")  # the file browser away
    shots(opened, folder, "light", least_px=0)
    with opened.zoomed(2):
        shots(opened, folder, "zoomed", least_px=560)
    opened.dark()
    shots(opened, folder, "dark", least_px=0)


def shots(opened: Notebook, folder: Path, look: str, *, least_px: int) -> None:
    """Keep pictures; a figure has words, fits the page, and is `least_px` wide (or as wide as it is made)."""
    figures = opened.figures()
    assert figures.count() > 0
    for number in range(figures.count()):
        figure = figures.nth(number)
        figure.scroll_into_view_if_needed()
        assert len((figure.get_attribute("alt") or "").split()) >= 5
        output = figure.locator("xpath=ancestor::*[contains(@class, 'jp-OutputArea-output')][1]")
        shown, place = figure.bounding_box(), output.bounding_box()
        assert shown is not None
        assert place is not None
        least_px = min(least_px, int(figure.get_attribute("width") or 0))
        assert shown["width"] >= least_px - 1
        assert shown["width"] <= max(place["width"], least_px) + 1, "it is wider than the page"
        output.screenshot(path=folder / f"{look}-{number:02d}.png")
    shown = opened.page.locator(".jp-CodeCell").last
    shown.scroll_into_view_if_needed()
    shown.screenshot(path=folder / f"{look}-map.png")
