"""An instructor's formgrader beside the course's commands: one gradebook, seen and changed in a browser."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from jupyter_page import server
from playwright.sync_api import Browser, expect
from rich.console import Console
from small_class import LAB, gradebook_scores, hand_in_class, small_course

from course_grader.school import autograde

pytestmark = pytest.mark.needs("chromium")

ROOT = Path(__file__).resolve().parents[2]

QUIET = Console(quiet=True)
LOAD_MS = 60_000


def test_formgrader_shows_what_was_graded_and_its_points_count(
    tmp_path: Path, chromium: Browser, pictures: Path
) -> None:
    root, private = tmp_path / "course", tmp_path / "private"
    root.mkdir()
    private.mkdir()
    shutil.copy(ROOT / "nbgrader_config.py", root)
    small_course(root)
    wanted = hand_in_class(root, 2)
    assert autograde.command(root, LAB, QUIET) == 0
    assert gradebook_scores(root) == wanted
    with server(root, private) as address:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        base, _, token = address.partition("lab/tree/{name}?")
        page.goto(f"{base}lab?{token}", timeout=LOAD_MS)  # logs in
        page.goto(f"{base}formgrader/manage_submissions/{LAB}", timeout=LOAD_MS)
        for student, points in wanted.items():
            row = page.locator("tr", has_text=student)
            expect(row).to_contain_text("graded", timeout=LOAD_MS)
            expect(row).to_contain_text(f"{points:g} /")
        page.screenshot(path=pictures / "formgrader-submissions.png")

        page.goto(f"{base}formgrader/gradebook/{LAB}/{LAB}", timeout=LOAD_MS)
        page.get_by_role("link", name="Submission #1").click()
        page.wait_for_url("**/formgrader/submissions/**", timeout=LOAD_MS)
        points_box = page.locator("input.score").first
        points_box.fill("1.5")
        with page.expect_response(lambda r: "/api/grade" in r.url and r.request.method == "PUT"):
            points_box.press("Tab")
        page.screenshot(path=pictures / "formgrader-submission.png")
        page.close()
    changed = gradebook_scores(root)
    assert dict(changed.items() - wanted.items()) in ({"student00": 1.5}, {"student01": 5 + 1.5})
    assert autograde.command(root, LAB, QUIET, again=True) == 0
    assert gradebook_scores(root) == changed
