"""`course reset, update, save, restore`: work outlives a mistake, a new release and a wiped machine.

Nothing is overwritten without a copy in course-kept/.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from course_grader.learner import files
from course_grader.learner.carry import merge
from course_grader.learner.files import NotebookFile
from course_grader.registry import exercises, get
from course_grader.show import progress
from course_lib import __version__

SAVED = "course-save.json"


def reset(place: Path, exercise_id: str, notebook: str | None, release: Path | None) -> str:
    """Make one answer cell what it was in the release; return what was done."""
    lab = get(exercise_id).lab
    mine = files.find(place, notebook or lab)
    stub = _answer(_release(place, mine, release), exercise_id)
    cell = _answer(mine.data, exercise_id)
    if files.source_of(cell) == files.source_of(stub):
        return f"{exercise_id} is as released; nothing to do"
    cell["source"], cell["outputs"], cell["execution_count"] = stub["source"], [], None
    copy = files.write(mine, place)
    return (
        f"{exercise_id} is as released again; your answer is kept in {copy}. "
        f"If {mine.path.name} is open, choose File > Reload Notebook from Disk"
    )


def _answer(data: dict[str, Any], exercise_id: str) -> files.Cell:
    found: list[files.Cell] = [
        c for c in data["cells"] if files.grade_id(c["metadata"]) == exercise_id and files.is_answer(c)
    ]
    if len(found) != 1:
        raise ValueError(
            f"the notebook must have one answer cell of {exercise_id}; got {len(found)}. "
            "`course update` takes the release again and carries your answers over."
        )
    return found[0]


def _release(place: Path, mine: NotebookFile, given: Path | None) -> dict[str, Any]:
    """Return the released notebook of a lab: the given file, or the one of the checkout's last commit."""
    if given is not None:
        return files.read(given, mine.lab).data
    try:
        text = _git(place, "show", f"HEAD:notebooks/{mine.lab}/{mine.lab}.ipynb")
    except RuntimeError as error:
        raise ValueError(
            f"the released {mine.lab}.ipynb must be at hand; this folder is no checkout of the course "
            f"({error}). Download it and name it: --release FILE."
        ) from error
    released: dict[str, Any] = json.loads(text)
    return released


def update(place: Path, name: str = "", release: Path | None = None) -> list[str]:
    """Take the newest release of labs and carry the learner's work into it; return what was done.

    With `release`, of one lab (`name`) from that file. Otherwise the checkout is brought up to date with git:
    all notebooks that were worked in are carried over.
    """
    if release is not None:
        data = files.read(release)
        return [_carry(place, files.find(place, name or data.lab), data.data)]
    worked_in = [mine for mine in _all(place) if _is_changed(place, mine)]
    _bring_up_to_date(place, worked_in)
    done = [_carry(place, mine, files.read(mine.path).data, before=mine) for mine in worked_in]
    return done or ["all labs are up to date; there was nothing to carry over"]


def _all(place: Path) -> list[NotebookFile]:
    paths = sorted((place / "notebooks").glob("[0-9][0-9]_*/[0-9][0-9]_*.ipynb"))
    return [files.read(path, path.parent.name) for path in paths]


def _is_changed(place: Path, mine: NotebookFile) -> bool:
    return bool(_git(place, "status", "--porcelain", "--", str(mine.path.relative_to(place))).strip())


def _bring_up_to_date(place: Path, worked_in: list[NotebookFile]) -> None:
    """Fetch and fast-forward; whatever fails, the learner's notebooks are as they were."""
    try:
        _git(place, "fetch", "--quiet")
    except RuntimeError as error:
        raise ValueError(
            f"the new release must be fetched; git says: {error}. Is there a network? Nothing was changed."
        ) from error
    for mine in worked_in:
        files.keep(mine.path, place)
    texts = {mine.path: mine.path.read_bytes() for mine in worked_in}
    try:
        if texts:
            _git(place, "checkout", "--quiet", "HEAD", "--", *(str(path) for path in texts))
        _git(place, "merge", "--quiet", "--ff-only", "@{upstream}")
    except RuntimeError as error:
        for path, content in texts.items():
            path.write_bytes(content)
        raise ValueError(
            f"the checkout must follow the course without conflicts; git says: {error}. Your notebooks are "
            "as they were. Put your other changes aside (`git stash`), and try again."
        ) from error


def _carry(
    place: Path, mine: NotebookFile, release: dict[str, Any], before: NotebookFile | None = None
) -> str:
    carried = merge((before or mine).cells, release)
    new = NotebookFile(mine.path, mine.lab, carried.data)
    copy = files.write(new, place)
    return f"{mine.lab}: {carried.summary()}. The file before is kept in {copy.parent}"


def save(place: Path, target: Path) -> str:
    """Write progress and the notebooks that hold work into one file, or a folder; return what was done.

    Raises: ValueError for a file that is no save, which stays.
    """
    path = target / SAVED if target.is_dir() else target
    if path.exists():
        _saved(path)
    notebooks = {mine.lab: mine.data for mine in _present(place) if any(map(_holds_work, mine.cells))}
    entries = progress.read_or_rescue(place)
    data = {"course": __version__, "exercises": entries, "notebooks": notebooks}
    try:
        progress.write_whole(path, json.dumps(data, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ValueError(
            f"{path} must be writable; got {error.strerror}. "
            "Name another file or folder; is the drive mounted?"
        ) from error
    return f"saved to {path}; verdicts: {len(entries)}, notebooks with answers: {len(notebooks)}"


def _present(place: Path) -> list[NotebookFile]:
    found = []
    for lab in sorted({exercise.lab for exercise in exercises()}):
        try:
            found.append(files.find(place, lab))
        except FileNotFoundError:
            continue
    return found


def _holds_work(cell: files.Cell) -> bool:
    return files.is_own(cell) or (files.is_answer(cell) and files.is_edited(cell))


def restore(place: Path, source: Path) -> list[str]:
    """Bring back what `save` wrote; answers go into the notebooks that are here. Return what was done.

    Of two verdicts the later one stays. Where a lab's notebook is not a file here (on Colab), its answers are
    written to LAB-answers.py, to be pasted.
    """
    saved, notebooks = _saved(source / SAVED if source.is_dir() else source)
    here = progress.read_or_rescue(place)
    for name, entry in saved.items():
        if name not in here or str(entry["when"]) >= str(here[name]["when"]):
            here[name] = entry
    progress.write(place, here)
    done = [f"{len(saved)} verdicts restored"]
    present = {mine.lab: mine for mine in _present(place)}
    for lab, notebook in notebooks.items():
        if lab in present:
            mine = present[lab]
            done.append(_carry(place, mine, mine.data, before=NotebookFile(mine.path, lab, notebook)))
    for lab in sorted({entry["lab"] for entry in saved.values()} - set(present)):
        done.append(_answers_as_text(place, lab, saved))
    return done


def _saved(path: Path) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the verdicts and the notebooks of a saved file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        saved: dict[str, dict[str, Any]] = dict(data["exercises"])
        notebooks: dict[str, dict[str, Any]] = dict(data["notebooks"])
        _ = [(entry["lab"], entry["when"], entry["answer"]) for entry in saved.values()]
        _ = [notebook["cells"] for notebook in notebooks.values()]
    except FileNotFoundError:
        raise ValueError(
            f"there must be a saved file at {path}; got none. `course save` writes one."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must be a file of `course save`; it is damaged or something else ({error}). "
            "Nothing was changed."
        ) from error
    return saved, notebooks


def _answers_as_text(place: Path, lab: str, saved: dict[str, Any]) -> str:
    answers = {name: e["answer"] for name, e in saved.items() if e["lab"] == lab and e["answer"]}
    text = "\n\n".join(f"# %% {name}\n{answer}" for name, answer in answers.items())
    path = progress.write_whole(progress.free_name(place / f"{lab}-answers.py"), text + "\n")
    return f"{lab}: its notebook is not here; {len(answers)} answers are in {path}, to be pasted"


def _git(place: Path, *arguments: str) -> str:
    """Run git; raise RuntimeError with its last line if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, text=True)
    except FileNotFoundError:
        raise RuntimeError("git is not installed") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"git {arguments[0]} failed")
    return done.stdout
