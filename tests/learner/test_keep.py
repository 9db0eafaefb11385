"""reset, update, save and restore, in a checkout with a remote and in folders without one."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from course_grader.learner import answers, files, keep
from course_grader.show import progress

ROOT = Path(__file__).resolve().parents[2]
LAB = "00_start_here"
ANSWER = """\
def rank_hello(secret):
    total = torch.tensor([secret])
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total.item()
"""


def git(place: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    subprocess.run(["git", *who, "-C", str(place), *arguments], check=True, capture_output=True)


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """The course as it is published: one lab."""
    place = tmp_path / "upstream"
    (place / "solutions").mkdir(parents=True)
    (place / "solutions" / "kept").touch()
    (place / "pyproject.toml").touch()
    (place / "notebooks" / LAB).mkdir(parents=True)
    shutil.copy(ROOT / "notebooks" / LAB / f"{LAB}.ipynb", place / "notebooks" / LAB)
    git(place, "init", "-q")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "first release")
    return place


@pytest.fixture
def checkout(upstream: Path, tmp_path: Path) -> Path:
    """A learner's clone."""
    git(tmp_path, "clone", "-q", str(upstream), "mine")
    return tmp_path / "mine"


def edit(path: Path, cell_id: str, text: str) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    next(cell for cell in data["cells"] if cell["id"] == cell_id)["source"] = text
    path.write_text(json.dumps(data), encoding="utf-8")


def text_of(path: Path, cell_id: str) -> str:
    data = json.loads(path.read_text(encoding="utf-8"))
    return files.source_of(next(cell for cell in data["cells"] if cell["id"] == cell_id))


def notebook(place: Path) -> Path:
    return place / "notebooks" / LAB / f"{LAB}.ipynb"


def copies(place: Path) -> list[str]:
    return [text_of(path, "rank_hello") for path in sorted((place / files.KEPT).iterdir())]


def test_reset_brings_the_stub_back_and_keeps_the_answer(checkout: Path) -> None:
    stub, other = text_of(notebook(checkout), "rank_hello"), "mean_gradient = mine"
    edit(notebook(checkout), "rank_hello", ANSWER)
    edit(notebook(checkout), "mean_gradient", other)
    said = keep.reset(checkout, "rank_hello", None, None)
    assert "your answer is kept in" in said
    assert text_of(notebook(checkout), "rank_hello") == stub
    assert text_of(notebook(checkout), "mean_gradient") == other
    assert copies(checkout) == [ANSWER]
    assert keep.reset(checkout, "rank_hello", None, None) == "rank_hello is as released; nothing to do"


def test_reset_where_nothing_can_be_written_changes_nothing(checkout: Path) -> None:
    edit(notebook(checkout), "rank_hello", ANSWER)
    (checkout / files.KEPT).write_text("in the way")  # root may write anywhere: refuse as the system does
    with pytest.raises(ValueError, match="must be writable; got File exists"):
        keep.reset(checkout, "rank_hello", None, None)
    assert text_of(notebook(checkout), "rank_hello") == ANSWER


def test_reset_without_a_checkout_needs_the_release(tmp_path: Path) -> None:
    mine = Path(shutil.copy(ROOT / "notebooks" / LAB / f"{LAB}.ipynb", tmp_path / "renamed.ipynb"))
    stub = text_of(mine, "rank_hello")
    edit(mine, "rank_hello", ANSWER)
    with pytest.raises(ValueError, match="Download it and name it: --release FILE"):
        keep.reset(tmp_path, "rank_hello", str(mine), None)
    keep.reset(tmp_path, "rank_hello", str(mine), ROOT / "notebooks" / LAB / f"{LAB}.ipynb")
    assert text_of(mine, "rank_hello") == stub


def test_update_fetches_the_release_and_carries_answers_over(upstream: Path, checkout: Path) -> None:
    edit(notebook(checkout), "rank_hello", ANSWER)
    edit(notebook(upstream), "card-rank_hello", "a better card")
    git(upstream, "commit", "-qam", "second release")
    (said,) = keep.update(checkout)
    assert "1 answers and 0 cells of your own carried over" in said
    assert text_of(notebook(checkout), "card-rank_hello") == "a better card"
    assert text_of(notebook(checkout), "rank_hello") == ANSWER
    assert ANSWER in copies(checkout)


def test_update_without_a_network_changes_nothing(upstream: Path, checkout: Path) -> None:
    edit(notebook(checkout), "rank_hello", ANSWER)
    before = notebook(checkout).read_bytes()
    shutil.rmtree(upstream)
    with pytest.raises(ValueError, match="Is there a network\\? Nothing was changed"):
        keep.update(checkout)
    assert notebook(checkout).read_bytes() == before


def test_update_that_cannot_go_on_leaves_the_notebooks(upstream: Path, checkout: Path) -> None:
    edit(notebook(checkout), "rank_hello", ANSWER)
    before = notebook(checkout).read_bytes()
    edit(notebook(upstream), "cell-000", "# New title")
    (upstream / "pyproject.toml").write_text("new")
    git(upstream, "commit", "-qam", "second release")
    (checkout / "pyproject.toml").write_text("mine")  # stands in the way
    with pytest.raises(ValueError, match="Your notebooks are as they were"):
        keep.update(checkout)
    assert notebook(checkout).read_bytes() == before


def test_update_from_a_file(tmp_path: Path) -> None:
    mine = Path(shutil.copy(ROOT / "notebooks" / LAB / f"{LAB}.ipynb", tmp_path))
    release = Path(shutil.copy(mine, tmp_path / "downloaded.ipynb"))
    edit(mine, "rank_hello", ANSWER)
    edit(release, "cell-000", "# New title")
    keep.update(tmp_path, release=release)
    assert text_of(mine, "cell-000") == "# New title"
    assert text_of(mine, "rank_hello") == ANSWER


def entry(when: str, answer: str = "") -> dict[str, Any]:
    base = {"lab": LAB, "score": 2.0, "max_score": 2.0, "parts": {}, "gate": "", "full": False, "course": "0"}
    return base | {"when": when, "answer": answer}


def test_work_comes_back_on_a_wiped_machine(checkout: Path, upstream: Path, tmp_path: Path) -> None:
    edit(notebook(checkout), "rank_hello", ANSWER)
    progress.write(checkout, {"rank_hello": entry("2026-01-01", ANSWER)})
    drive = tmp_path / "drive"
    drive.mkdir()
    assert "verdicts: 1, notebooks with answers: 1" in keep.save(checkout, drive)
    git(tmp_path, "clone", "-q", str(upstream), "fresh")
    fresh = tmp_path / "fresh"
    done = keep.restore(fresh, drive)
    assert done[0] == "1 verdicts restored"
    assert text_of(notebook(fresh), "rank_hello") == ANSWER
    assert progress.read(fresh) == progress.read(checkout)


def test_of_two_verdicts_the_later_one_stays(tmp_path: Path) -> None:
    place, saved = tmp_path / "here", tmp_path / "save.json"
    place.mkdir()
    for old, new in (("2026-01-01", "2026-02-02"), ("2026-02-02", "2026-01-01")):
        progress.write(place, {"rank_hello": entry(old)})
        saved.write_text(json.dumps({"exercises": {"rank_hello": entry(new)}, "notebooks": {}}))
        keep.restore(place, saved)
        assert progress.read(place)["rank_hello"]["when"] == "2026-02-02"


def test_without_a_notebook_file_answers_come_as_text(tmp_path: Path) -> None:
    progress.write(tmp_path, {"rank_hello": entry("2026-01-01", ANSWER)})
    keep.save(tmp_path, tmp_path / "save.json")
    colab = tmp_path / "content"
    colab.mkdir()
    said = keep.restore(colab, tmp_path / "save.json")[-1]
    assert "1 answers are in" in said
    assert ANSWER in (colab / f"{LAB}-answers.py").read_text(encoding="utf-8")


DAMAGED = ["", '{"exercises": {', "[]", '{"exercises": 3, "notebooks": {}}']
DAMAGED += ['{"exercises": {"rank_hello": 3}, "notebooks": {}}', '{"exercises": {}, "notebooks": {"00": 3}}']


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_save_changes_nothing(tmp_path: Path, damage: str) -> None:
    (tmp_path / "save.json").write_text(damage)
    with pytest.raises(ValueError, match="must be a file of `course save`"):
        keep.restore(tmp_path, tmp_path / "save.json")
    assert [path.name for path in tmp_path.iterdir()] == ["save.json"]


def test_saving_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is the drive mounted"):
        keep.save(tmp_path, tmp_path / "no such drive" / "save.json")


def test_saving_replaces_an_older_save_and_nothing_else(checkout: Path) -> None:
    mine = notebook(checkout)
    before = mine.read_bytes()
    with pytest.raises(ValueError, match="must be a file of `course save`"):
        keep.save(checkout, mine)
    assert mine.read_bytes() == before
    for _ in range(2):
        assert "saved to" in keep.save(checkout, checkout / "save.json")


def test_check_reads_the_file_and_notes_the_verdict(tmp_path: Path) -> None:
    mine = Path(shutil.copy(ROOT / "notebooks" / LAB / f"{LAB}.ipynb", tmp_path / "my lab.ipynb"))
    edit(mine, "rank_hello", ANSWER)
    console = Console(record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    course = tmp_path / "course"
    course.mkdir()
    assert answers.check_notebook(course, str(mine), console, full=True) == 1  # the others are not written
    said = console.export_text()
    assert "00_start_here: 2 of" in said
    assert f"noted in {tmp_path / progress.NAME}" in said
    noted = progress.read(tmp_path)
    assert noted["rank_hello"]["full"]
    assert noted["rank_hello"]["answer"].strip() == ANSWER.strip()
    assert noted["numbers_00"]["gate"] == "implemented"


def test_a_renamed_notebook_is_recognised(tmp_path: Path) -> None:
    mine = Path(shutil.copy(ROOT / "notebooks" / LAB / f"{LAB}.ipynb", tmp_path / "my lab.ipynb"))
    with pytest.raises(FileNotFoundError, match=r"Was it renamed\? `course check .*my lab.ipynb`"):
        files.find(tmp_path, "0")
    assert files.find(tmp_path, str(mine)).lab == LAB


@pytest.mark.parametrize("content", ["", '{"cells": [', "[]", '{"cells": [{}]}', "null"])
def test_a_file_that_is_no_notebook_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "03.ipynb"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"03.ipynb must be a notebook; it cannot be read"):
        files.find(tmp_path, str(path))


def test_a_lab_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a lab must be one of 00_start_here"):
        files.find(tmp_path, "77")
    with pytest.raises(ValueError, match="rank_hello is an exercise of 00_start_here: name that"):
        files.find(tmp_path, "rank_hello")
