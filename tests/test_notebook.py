"""The first cell's questions: is what is installed what the notebook was made for?"""

from __future__ import annotations

import importlib.metadata

import pytest

from course_lib import REPOSITORY, __version__, notebook


def test_nothing_is_said_where_everything_fits(capsys: pytest.CaptureFixture[str]) -> None:
    notebook.start(__version__)
    assert capsys.readouterr().out == ""


def test_other_versions_are_named_with_both_ways_out(capsys: pytest.CaptureFixture[str]) -> None:
    notebook.start("9.9.9")
    said = capsys.readouterr().out
    assert (
        f"This notebook is of version 9.9.9 of the course, the installed course_lib of {__version__}" in said
    )
    assert f"git+{REPOSITORY}@v9.9.9" in said
    assert "course update" in said


@pytest.mark.parametrize(("found", "words"), [("2.6.0+cu124", "got 2.6.0"), (None, "got none")])
def test_an_old_or_missing_torch_says_which_is_needed(
    monkeypatch: pytest.MonkeyPatch, found: str | None, words: str
) -> None:
    monkeypatch.setattr(notebook, "installed", lambda name: found if name == "torch" else "1.0")
    with pytest.raises(RuntimeError, match=r"torch 2\.9 or newer must be installed; " + words):
        notebook.start(__version__)


@pytest.mark.parametrize(
    ("version", "enough"), [("2.9.0", True), ("2.13.0a0+git", True), ("2.8.1", False), ("3.0", True)]
)
def test_torch_versions_compare_as_numbers(version: str, enough: bool) -> None:
    assert notebook.is_enough(version) is enough


def test_what_no_deps_left_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = notebook.installed
    monkeypatch.setattr(notebook, "installed", lambda name: None if name == "cloudpickle" else real(name))
    with pytest.raises(RuntimeError, match="missing: cloudpickle"):
        notebook.start(__version__)


def test_the_core_is_what_is_looked_for() -> None:
    wanted = importlib.metadata.requires(notebook.DISTRIBUTION)
    assert wanted is not None
    assert notebook.missing_packages() == []
