"""The site in a Chromium, as on a phone and on a desk, light and dark; part of `make browser`.

It looks at what `make site` built last, and builds it where it never was. axe-core finds what somebody who
cannot see or has no mouse stumbles over. The screenshots in build/browser/ are there to be looked at.
"""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

ROOT = Path(__file__).resolve().parents[2]
HTML = ROOT / "build" / "site" / "html"
PAGES = ("index", "labs/03_data_parallel", "planner", "zoo", "accuracy", "api/data-parallel", "instructor")
SIZES = {"desk": (1280, 800), "phone": (390, 844)}

pytestmark = pytest.mark.needs("chromium")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Say nothing: pytest has its own output."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of the site, served as GitHub Pages does."""
    if not (HTML / "index.html").exists():
        subprocess.run([sys.executable, str(ROOT / "website" / "build.py")], check=True)
    handler = functools.partial(Quiet, directory=str(HTML))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(params=["light", "dark"])
def theme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=list(SIZES))
def page(request: pytest.FixtureRequest, chromium: Browser, theme: str) -> Iterator[Page]:
    width, height = SIZES[request.param]
    context = chromium.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
    )
    opened = context.new_page()
    yield opened
    context.close()


def opened(page: Page, site: str, name: str) -> list[str]:
    """Open a page; return what it complained of."""
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(f"{request.url} failed"))
    page.on("response", lambda answer: answer.ok or complaints.append(f"{answer.url}: {answer.status}"))
    page.on(
        "request", lambda request: request.url.startswith((site, "data:")) or complaints.append(request.url)
    )
    page.goto(f"{site}/{name}.html")
    page.wait_for_load_state("networkidle")
    return complaints


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_fits_and_can_be_read_by_everybody(
    page: Page, site: str, name: str, theme: str, pictures: Path
) -> None:
    assert opened(page, site, name) == []
    size = page.viewport_size
    assert size is not None
    page.screenshot(path=pictures / f"site-{name.replace('/', '-')}-{size['width']}-{theme}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.add_script_tag(content=files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [
        (one["id"], len(one["nodes"]), one["nodes"][0]["html"][:200], one["nodes"][0]["failureSummary"])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []


def test_an_answer_opens_with_a_click(page: Page, site: str) -> None:
    opened(page, site, "labs/03_data_parallel")
    answer = page.locator("details", has=page.get_by_text("Answer", exact=True)).first
    code = answer.locator("pre").first
    assert not code.is_visible()
    answer.locator("summary").click()
    assert code.is_visible()


def test_the_planner_shows_what_is_chosen(page: Page, site: str) -> None:
    opened(page, site, "planner")
    assert "--gpus 16384" in page.locator(".planner-out code").inner_text()
    page.get_by_label("GPUs").select_option("64")
    page.get_by_label("Model").select_option("llama3-8b")
    assert "--model llama3-8b" in page.locator(".planner-out code").inner_text()
    assert page.locator(".planner-row").count() >= 3


def test_the_search_finds_a_technique(page: Page, site: str) -> None:
    opened(page, site, "search")
    page.goto(f"{site}/search.html?q=zigzag")
    page.locator("#search-results a", has_text="10").first.wait_for()
