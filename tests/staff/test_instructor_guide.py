"""Every command of docs/instructor.md, in its order, on a course of one student."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat
import pytest
from typer.testing import CliRunner

from course_lib.cli import app
from course_lib.staff import build
from course_lib.staff.ledger import Ledger
from course_lib.staff.source import notebook_of
from course_lib.staff.submissions import answers_of, filled_in

LAB = "00_start_here"
ROOT = Path(__file__).resolve().parents[2]


def commands() -> list[list[str]]:
    guide = (ROOT / "docs" / "instructor.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", guide, re.S) for line in block.splitlines()]
    return [line.split() for line in lines if line.strip()]


def test_a_term_in_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "solutions").mkdir()
    (tmp_path / "pyproject.toml").touch()
    shutil.copy(ROOT / "solutions" / f"{LAB}.py", tmp_path / "solutions")
    lab = build.find_lab(tmp_path, LAB)
    build.replace_text(lab.solution, build.text_of(notebook_of(lab.source, build.default_catalog())))
    monkeypatch.chdir(tmp_path)
    found = commands()
    assert [words[1] for words in found] == ["release", "collect", "autograde", "feedback", "report"]
    for words in found:
        assert words[0] == "course"
        if words[1] == "collect":
            right = answers_of(nbformat.read(lab.solution, as_version=4))
            archive = tmp_path / "grading/downloaded" / LAB / "archive"
            archive.mkdir(parents=True)
            text = filled_in(lab.release.read_text(encoding="utf-8"), right)
            (archive / f"ann_attempt_2026-01-15-12-00-00_{LAB}.ipynb").write_text(text, encoding="utf-8")
        result = CliRunner().invoke(app, ["00" if word == "03" else word for word in words[1:]])
        assert result.exit_code == 0, (words, result.output, result.exception)
    entry = Ledger(tmp_path / "grading/ledger.db").entry(LAB, "ann")
    assert entry is not None
    assert (entry.state, entry.score) == ("graded", 13.0)
    assert (tmp_path / "grading/feedback/ann" / LAB / f"{LAB}.html").exists()
    assert (tmp_path / "grading/reports" / LAB / "canvas.csv").exists()
