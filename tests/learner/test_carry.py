"""Answers go from one release to the next by cell id: edited, moved, removed, added, untouched cells."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbgrader.utils import compute_checksum

from course_grader.learner import files
from course_grader.learner.carry import HEADING_ID, merge

ROOT = Path(__file__).resolve().parents[2]
RELEASE = json.loads((ROOT / "notebooks/00_start_here/00_start_here.ipynb").read_text(encoding="utf-8"))


def released() -> dict[str, Any]:
    return copy.deepcopy(RELEASE)


def cell(data: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in data["cells"] if one["id"] == name)


def ids(data: dict[str, Any]) -> list[str]:
    return [one["id"] for one in data["cells"]]


def own(name: str, text: str) -> dict[str, Any]:
    base = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    return base | {"id": name, "source": text}


def test_an_edited_answer_is_carried_and_its_neighbours_are_the_new_ones() -> None:
    old, new = released(), released()
    cell(old, "rank_hello")["source"] = ["def rank_hello(secret):\n", "    return 1"]
    cell(old, "cell-000")["source"] = "# My notes over the title"
    cell(new, "card-rank_hello")["source"] = "a better card"
    carried = merge(old["cells"], new)
    assert files.source_of(cell(carried.data, "rank_hello")) == "def rank_hello(secret):\n    return 1"
    assert cell(carried.data, "card-rank_hello")["source"] == "a better card"
    assert cell(carried.data, "cell-000") == cell(new, "cell-000")
    assert carried.answers == ["rank_hello"]
    assert ids(carried.data) == ids(new)


def test_a_stub_nobody_touched_gives_way_to_the_new_stub() -> None:
    old, new = released(), released()
    cell(new, "rank_hello")["source"] = (
        "def rank_hello(secret):\n    '''Clearer.'''\n    raise NotImplementedError"
    )
    carried = merge(old["cells"], new)
    assert "Clearer" in files.source_of(cell(carried.data, "rank_hello"))
    assert carried.answers == []


def test_an_answer_follows_its_exercise_to_another_place() -> None:
    old, new = released(), released()
    cell(old, "mean_gradient")["source"] = "mean_gradient = my_way"
    moved = new["cells"].pop(ids(new).index("mean_gradient"))
    new["cells"].insert(2, moved)
    carried = merge(old["cells"], new)
    assert ids(carried.data) == ids(new)
    assert cell(carried.data, "mean_gradient")["source"] == "mean_gradient = my_way"


def test_cells_a_learner_moved_are_found_by_id() -> None:
    old, new = released(), released()
    cell(old, "rank_hello")["source"] = "rank_hello = mine"
    old["cells"].reverse()
    assert cell(merge(old["cells"], new).data, "rank_hello")["source"] == "rank_hello = mine"


def test_an_answer_without_an_exercise_comes_to_the_end() -> None:
    old, new = released(), released()
    cell(old, "fix_the_hang")["source"] = "mean_loss = mine"
    new["cells"] = [one for one in new["cells"] if "fix_the_hang" not in one["id"]]
    carried = merge(old["cells"], new)
    assert carried.homeless == ["fix_the_hang"]
    assert ids(carried.data)[-2:] == [HEADING_ID, "before-fix_the_hang"]
    assert carried.data["cells"][-1]["source"] == "mean_loss = mine"
    assert "nbgrader" not in carried.data["cells"][-1]["metadata"]
    again = merge(carried.data["cells"], new)
    assert again.data["cells"][-1]["source"] == "mean_loss = mine", "a second update loses it"


def test_an_answer_cell_the_learner_removed_is_there_again() -> None:
    old, new = released(), released()
    old["cells"] = [one for one in old["cells"] if one["id"] != "rank_hello"]
    carried = merge(old["cells"], new)
    assert cell(carried.data, "rank_hello") == cell(new, "rank_hello")


def test_cells_of_ones_own_stay_behind_their_neighbour() -> None:
    old, new = released(), released()
    at = ids(old).index("rank_hello")
    old["cells"][at + 1 : at + 1] = [own("aaaa1111", "helper = 1"), own("bbbb2222", "helper = 2")]
    old["cells"].insert(0, own("cccc3333", "first = 1"))
    cell(old, "rank_hello")["source"] = "rank_hello = helper"
    new["cells"].insert(5, own("cell-999", "new text"))
    carried = merge(old["cells"], new)
    names = ids(carried.data)
    assert names[0] == "cccc3333"
    assert names[names.index("rank_hello") + 1 :][:2] == ["aaaa1111", "bbbb2222"]
    assert carried.own == 3
    assert "1 answers and 3 cells of your own" in carried.summary()


def test_ids_stay_different_when_the_release_takes_one() -> None:
    old, new = released(), released()
    old["cells"].append(own("abcd", "mine = 1"))
    new["cells"].append(own("abcd", "theirs = 1"))
    names = ids(merge(old["cells"], new).data)
    assert len(names) == len(set(names))


def test_what_comes_out_is_a_valid_notebook() -> None:
    old = released()
    old["cells"].append(own("abcd", "mine = 1"))
    cell(old, "rank_hello")["source"] = "rank_hello = mine"
    nbformat.validate(nbformat.from_dict(merge(old["cells"], released()).data))


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*/*.ipynb")), ids=lambda path: path.stem)
def test_the_checksum_is_nbgraders(path: Path) -> None:
    answers = [one for one in nbformat.read(path, as_version=4).cells if files.is_answer(one)]
    assert answers
    for one in answers:
        assert not files.is_edited(one)
        one.source += "\n# mine"
        assert files.is_edited(one)
        one.metadata.nbgrader.checksum = compute_checksum(one)
        assert not files.is_edited(one)
