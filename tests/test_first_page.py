"""The first page says what is so: its numbers, its report, its pictures."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = json.loads((ROOT / "docs" / "pictures" / "pictures.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "website" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_is_short() -> None:
    seen = re.sub(r"\]\([^)]*\)", "]", re.sub(r"<[^>]*>", "", README))
    assert len([word for word in seen.split() if re.search(r"\w", word)]) <= 750


def test_the_first_screen_has_the_picture_and_the_commands() -> None:
    first = README.split("\n## ")[0]
    assert "docs/pictures/first-dark.png" in first
    assert re.findall(r"^make (\w+)", first, flags=re.MULTILINE) == ["demo", "test"]


def test_pictures_of_the_readme_exist_in_both_themes() -> None:
    named = re.findall(r"docs/pictures/([\w-]+)\.png", README)
    assert {name for name in named if not (ROOT / "docs" / "pictures" / f"{name}.png").exists()} == set()
    assert {name.removesuffix("-dark") for name in named if name.endswith("-dark")} == {
        name.removesuffix("-light") for name in named if name.endswith("-light")
    }


def test_each_small_picture_is_a_figure_of_its_lab(pictures: ModuleType) -> None:
    plain = pictures.words_without_numbers
    stale = [
        lab.name
        for lab in pictures.labs()
        if lab.name[:2] in WORDS and plain(pictures.figure_of(lab)[0]) != plain(WORDS[lab.name[:2]])
    ]
    assert stale == [], "run `make pictures`"


def test_the_first_picture_shows_the_verdict_of_today(pictures: ModuleType) -> None:
    assert WORDS["first"].endswith(f"{pictures.verdict()[1]}."), "run `make pictures`"
    assert WORDS["first"] in README


def test_the_report_of_a_hang_is_the_one_lab_00_shows() -> None:
    lab = ROOT / "solutions" / "00_start_here" / "00_start_here.ipynb"
    outputs = [o for cell in nbformat.read(lab, as_version=4).cells for o in cell.get("outputs", [])]
    shown = [" ".join(str(output.get("text", "")).split()) for output in outputs]
    block = next(text for text in README.split("```") if text.strip().startswith("Hang:"))
    cell = re.compile(r"cell \[\d+\]")
    assert cell.sub("", " ".join(block.split())) in [cell.sub("", text) for text in shown]


def test_the_numbers_of_the_zoo_hold() -> None:
    heads = [
        line
        for path in (ROOT / "tests" / "zoo").glob("[0-9]*/*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith(("# %% right", "# %% wrong"))
    ]
    right, wrong = (int(n.replace(",", "")) for n in re.findall(r"over\s+([\d,]+)\s", README))
    assert sum(line.startswith("# %% right") for line in heads) > right
    assert sum(line.startswith("# %% wrong") for line in heads) > wrong


def test_the_errors_of_predictions_are_those_of_the_accuracy_page() -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    validated = re.findall(r"^\| ([^|]+) \| validates \| (\d+) \| ([\d.]+) \|", page, flags=re.MULTILINE)
    known = {(runs, error) for _, runs, error in validated}
    table = re.findall(r"^\| [^|]+ \| (\d+) \| ([\d.]+)% \|$", README, flags=re.MULTILINE)
    assert len(table) >= 5
    assert set(table) <= known
