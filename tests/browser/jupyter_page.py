"""JupyterLab in a temporary folder, and a browser that does in it what a student does.

Nothing here waits for a time, only for a condition, with generous limits: a loaded machine is slow, not
wrong.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, sync_playwright

from course_lib import doctor

T = TypeVar("T")
START_S, CELL_S = 180, 300
SETTINGS = {
    # Every cell is in the page, in view or not: what is asserted about a cell does not hang on scrolling.
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "docmanager-extension/plugin": {"autosave": False},
}
# What JupyterLab itself says on every page of ours, on a machine without network; an attached picture it
# first looks for by its name, and then in the notebook.
NOT_OURS = re.compile(r"api/(kernels|sessions)/.*\b404\b|favicon|UNKNOWN_URL_SCHEME \(attachment:")


def chromium() -> str:
    """Return the browser's path."""
    program = doctor.PROGRAMS["chromium"]
    found = program.path()
    if found is None:
        raise FileNotFoundError(
            f"a Chromium must be on PATH; none of {', '.join(program.commands)} was found. "
            f"Install one ({doctor.how_to_get(['chromium'])}) and run `make browser` again"
        )
    return found


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start a headless Chromium."""
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]  # root in a container has neither
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), headless=True, args=arguments)
        try:
            yield opened
        finally:
            opened.close()


@contextlib.contextmanager
def server(folder: Path, private: Path) -> Iterator[str]:
    """Serve `folder` with JupyterLab on a free port; yield the address of its lab, token included.

    private: an empty folder for settings, logs and home, so that nobody's own are read or written.
    """
    _write_settings(private / "settings")
    environment = os.environ | {
        "HOME": str(private),
        "IPYTHONDIR": str(private / "ipython"),
        "JUPYTER_CONFIG_DIR": str(private / "config"),
        "JUPYTER_DATA_DIR": str(private / "data"),
        "JUPYTER_RUNTIME_DIR": str(private / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(private / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(private / "workspaces"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    command += ["--ServerApp.port=0", "--LabApp.extension_manager=readonly", "--LabApp.news_url="]
    with open(private / "server.log", "wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield _address(process, private)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _write_settings(folder: Path) -> None:
    for name, values in SETTINGS.items():
        path = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values), encoding="utf-8")


def _address(process: subprocess.Popen[bytes], private: Path) -> str:
    """Wait until the server has written where it listens."""

    def listens() -> str | None:
        if process.poll() is not None:
            log = (private / "server.log").read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"JupyterLab must start; it ended with {process.returncode}:\n{log[-3000:]}")
        for path in (private / "runtime").glob("jpserver-*.json"):
            with contextlib.suppress(ValueError, KeyError):  # half written
                found = json.loads(path.read_text(encoding="utf-8"))
                return f"{found['url']}lab/tree/{{name}}?token={found['token']}"
        return None

    return wait_for(listens, START_S, "JupyterLab listens")


def wait_for(condition: Callable[[], T | None], limit_s: float, what: str) -> T:
    """Poll until `condition` returns something."""
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        found = condition()
        if found:
            return found
        time.sleep(0.2)
    raise TimeoutError(f"within {limit_s:g} s this must hold: {what}")


class Notebook:
    """One notebook open in a page, and the hands and eyes of a student."""

    def __init__(self, page: Page, path: Path, address: str) -> None:
        self.page, self.path = page, path
        self.complaints: list[str] = []
        page.set_default_timeout(START_S * 1e3)
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        page.goto(address.format(name=path.name))
        page.locator("#jupyterlab-splash").wait_for(state="detached")
        # Until the file is there, JupyterLab shows one empty cell.
        number = len(json.loads(path.read_text(encoding="utf-8"))["cells"])
        wait_for(lambda: self.cells() == number, START_S, f"{path.name} shows its {number} cells")
        self.wait_idle()

    def _note(self, message: ConsoleMessage) -> None:
        text = f"{message.type}: {message.text} ({message.location.get('url', '')})"
        if message.type == "error" and not NOT_OURS.search(text):
            self.complaints.append(text)

    # ---- cells

    def cell(self, index: int) -> Locator:
        """Return a cell by its place."""
        return self.page.locator(".jp-Notebook .jp-Cell").nth(index)

    def cells(self) -> int:
        """Count the cells."""
        return self.page.locator(".jp-Notebook .jp-Cell").count()

    def select(self, index: int) -> Locator:
        """Click into a code cell's editor."""
        cell = self.cell(index)
        editor = cell.locator(".cm-content")
        editor.scroll_into_view_if_needed()
        editor.click()
        return cell

    def fill(self, index: int, text: str) -> None:
        """Replace a cell's text, as from an input method: nothing is indented or closed by the editor."""
        self.select(index)
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.press("Delete")
        self.page.keyboard.insert_text(text)

    def run(self, index: int) -> Locator:
        """Run one cell and wait for its end; return its output."""
        before = self.count(index)
        self.start(index)
        self.finish(index, before)
        return self.output(index)

    def start(self, index: int) -> None:
        """Run one cell and do not wait."""
        self.select(index)
        self.page.keyboard.press("Shift+Enter")

    def finish(self, index: int, before: int | None = None) -> None:
        """Wait until a cell has run (again)."""
        wait_for(lambda: self.count(index) not in (None, before), CELL_S, f"cell {index} has run")

    def count(self, index: int) -> int | None:
        """Return a cell's execution count; None if it never ran or still runs."""
        found = re.search(r"\[(\d+)\]", self._prompt(index))
        return int(found.group(1)) if found else None

    def _prompt(self, index: int) -> str:
        return self.cell(index).locator(".jp-InputPrompt").first.inner_text().strip()

    def output(self, index: int) -> Locator:
        """Return the output area of a cell."""
        return self.cell(index).locator(".jp-Cell-outputArea")

    # ---- menus and buttons

    def menu(self, name: str, item: str) -> None:
        """Choose from the menu bar."""
        self.page.locator("#jp-MainMenu .lm-MenuBar-item", has_text=re.compile(f"^{name}$")).click()
        self.page.locator(".lm-Menu-item:not(.lm-mod-disabled)", has_text=item).first.click()

    def interrupt(self) -> None:
        """Press the stop button."""
        self.page.locator("jp-button[data-command='notebook:interrupt-kernel']").click()

    def wait_idle(self) -> None:
        """Wait until the kernel is there and does nothing."""
        indicator = self.page.locator(".jp-Notebook-ExecutionIndicator:visible")
        wait_for(
            lambda: indicator.count() and indicator.first.get_attribute("data-status") == "idle",
            CELL_S,
            "the kernel is idle",
        )

    def save(self) -> None:
        """Save with the keyboard and wait for the file."""
        before = self.path.stat().st_mtime_ns
        self.page.keyboard.press("ControlOrMeta+s")
        wait_for(lambda: self.path.stat().st_mtime_ns != before, START_S, "the notebook is saved")

    def run_all(self) -> float:
        """Run every cell from the menu; return the seconds until the last one ended."""
        codes = [i for i in range(self.cells()) if self.is_code(i)]
        started = time.monotonic()
        self.menu("Run", "Run All Cells")
        if not self._begins(codes):  # on a busy machine the menu may close before the click arrives
            self.menu("Run", "Run All Cells")
        for index in codes:
            self.finish(index)
        self.wait_idle()
        return time.monotonic() - started

    def _begins(self, codes: list[int]) -> bool:
        """Whether some cell runs, or has run, within 20 s."""
        try:
            wait_for(lambda: any(self._prompt(index) != "[ ]:" for index in codes), 20, "a cell runs")
        except TimeoutError:
            return False
        return True

    def is_code(self, index: int) -> bool:
        """Tell code from text."""
        return "jp-CodeCell" in (self.cell(index).get_attribute("class") or "")

    def errors(self) -> list[str]:
        """Return the texts of all outputs on stderr and all tracebacks."""
        found = self.page.locator(
            ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr'],"
            ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']"
        )
        return found.all_inner_texts()

    def sliders(self) -> Locator:
        """Return the handle of every slider."""
        return self.page.locator(".jp-CodeCell .jupyter-widgets .noUi-handle")

    def dark(self) -> None:
        """Choose the dark theme from the menu."""
        self.page.locator("#jp-MainMenu .lm-MenuBar-item", has_text=re.compile("^Settings$")).click()
        self.page.locator(".lm-Menu-item", has_text=re.compile("^Theme$")).hover()
        self.page.locator(".lm-Menu-item", has_text=re.compile("^JupyterLab Dark$")).click()
        self.page.locator("body[data-jp-theme-light='false']").wait_for(state="attached")

    @contextlib.contextmanager
    def zoomed(self, factor: int) -> Iterator[None]:
        """Show everything `factor` times as large in a window of the same size, as Ctrl and + do."""
        size = self.page.viewport_size
        assert size is not None
        metrics = {"width": size["width"] // factor, "height": size["height"] // factor}
        session = self.page.context.new_cdp_session(self.page)
        session.send(
            "Emulation.setDeviceMetricsOverride", {**metrics, "deviceScaleFactor": factor, "mobile": False}
        )
        try:
            yield
        finally:
            session.send("Emulation.clearDeviceMetricsOverride")
            session.detach()

    def figures(self) -> Locator:
        """Return every picture that a code cell has shown."""
        return self.page.locator(".jp-CodeCell .jp-OutputArea-output img")
