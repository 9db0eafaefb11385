"""Judge a submission from its file: verdicts come from where student code never ran.

The definitions are taken by `ast` from the submitted notebook, ranks run in a sandbox without oracle, seed or
closed modules, plain data comes back, and the comparison with the oracle happens here. No kernel takes part:
nothing that a notebook prints, patches or kills can add or lose a point.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from course_grader.answer.source import holds_code
from course_grader.exercise import Exercise, GateFailed, Result
from course_grader.forbids import PACKAGES, is_course
from course_grader.judge import engine
from course_grader.judge.needs import course_modules
from course_grader.judge.sandbox_runner import SandboxRunner
from course_grader.limits import Limits
from course_grader.registry import program_of, spec
from course_grader.school.submissions import MAX_NOTEBOOK_BYTES, Unreadable, notebook_of
from course_grader.why import Why
from course_lib.ranks.forkserver import preloaded

Masked = tuple[str, ...]  # modules of the course that are not there
MAX_CODE_BYTES = 2_000_000
# The sandbox itself needs these and what they import: not masked, closed by the guard in the rank.
_WORKER = (
    "course_grader.inside.sandbox_entry",
    "course_grader.inside.sandbox_worker",
    *preloaded(),
)


_OF_THE_MOMENT = ("runs", "terminates")  # gates
_judged: dict[bytes, Judgement] = {}  # in this process, which knows one version of the course


@dataclasses.dataclass(frozen=True)
class Judgement:
    """Verdicts of one submission, and the limits that ended a sandbox, by exercise."""

    verdicts: dict[str, Result]
    killed: dict[str, str] = dataclasses.field(default_factory=dict)


def code_cells(path: Path) -> list[str]:
    """Return the text of the code cells of a submitted notebook.

    Raises: Unreadable.
    """
    return [str(cell.source) for cell in read_code_cells(path)]


def read_code_cells(path: Path) -> list[Any]:
    """Return the code cells of a submitted notebook with their metadata, nbgrader's marks among them.

    Raises: Unreadable.
    """
    if path.is_symlink() or not path.is_file():
        raise Unreadable("it must be a file; got a link or a folder")
    size = path.stat().st_size
    if not 0 < size <= MAX_NOTEBOOK_BYTES:
        raise Unreadable(
            f"a notebook must have 1 byte to {MAX_NOTEBOOK_BYTES // 1_000_000} MB; it has {size:,} bytes. "
            "Clear its outputs and submit it again"
        )
    cells = [cell for cell in notebook_of(path).cells if holds_code(cell)]
    if sum(len(str(cell.source)) for cell in cells) > MAX_CODE_BYTES:
        raise Unreadable(f"its code cells must hold at most {MAX_CODE_BYTES // 1_000_000} MB of text")
    return cells


def judge_cells(
    cells: list[str],
    chosen: Iterable[Exercise],
    *,
    limits: Limits | None = None,
    trust: bool = False,
    seed: int | None = None,
) -> Judgement:
    """Judge each exercise on the definitions in `cells`, those that close the same modules in one sandbox.

    Args:
        limits: `submission_s` after the beginning, what is left counts as killed by the limit on time.
        seed: of the data; fresh and secret by default.
    """
    wanted = list(chosen)
    limits = limits or Limits()
    deadline_s = time.monotonic() + limits.submission_s
    found: dict[str, Result] = {}
    killed: dict[str, str] = {}
    with SandboxRunner(limits, trust=trust) as room:
        for exercise, masked in in_sandboxes(wanted):
            if time.monotonic() > deadline_s:
                killed[exercise.id] = "time"
                must = (
                    f"the submission's limit of {limits.submission_s:.0f} s was used up before this exercise."
                )
                late = engine.merge(exercise, [], [], GateFailed("terminates", Why(must)).part, 0)
                found[exercise.id] = dataclasses.replace(late, hidden=True)
                continue
            data_seed = secrets.randbelow(2**31) if seed is None else seed
            room.killed.clear()
            found[exercise.id] = judge_exercise(room, exercise, cells, data_seed, masked)
            if room.killed:
                killed[exercise.id] = room.killed[-1]
    return Judgement({e.id: found[e.id] for e in wanted}, killed)


def in_sandboxes(chosen: Iterable[Exercise]) -> Iterator[tuple[Exercise, Masked]]:
    """Yield exercises with what is masked for them, those that can share a sandbox one after another.

    Starting a sandbox costs more than judging most exercises. A shared one masks what is closed to any of its
    exercises, as long as none of their programs needs it.
    """
    groups: list[tuple[set[str], set[str], list[Exercise]]] = []
    for exercise in sorted(chosen, key=lambda e: e.order):
        masked, needed = set(masked_modules(exercise)), set(_needed(exercise))
        for group_masked, group_needed, members in groups:
            if not any(_overlaps(name, group_needed | needed) for name in group_masked | masked):
                group_masked |= masked
                group_needed |= needed
                members.append(exercise)
                break
        else:
            groups.append((masked, needed, [exercise]))
    for masked, _, members in groups:
        yield from ((exercise, tuple(sorted(masked))) for exercise in members)


def judge_exercise(
    room: SandboxRunner, exercise: Exercise, cells: list[str], seed: int, masked: Masked | None = None
) -> Result:
    """Judge one exercise; never raises for anything the answer does.

    `masked`: modules that are missing in a sandbox shared with other exercises. An answer that uses the
    course's library gets a sandbox of its own, in which every module that is open to it exists.
    """
    start = time.perf_counter()
    declared, own = spec(exercise.id), masked_modules(exercise)
    room.open_for(own if masked is None else masked)
    try:
        answer = room.definitions(exercise, cells)
        if masked is not None and any(name in answer.before + answer.text for name in PACKAGES):
            room.open_for(own)
        job_of = engine.job_factory(exercise, answer)
        verdict, _ = engine.judge(declared, job_of, seed, True, room.run)
        verdict = dataclasses.replace(verdict, note=answer.note)
    except GateFailed as failed:
        verdict = engine.merge(exercise, [], [], failed.part, seed)
    return dataclasses.replace(verdict, seconds=time.perf_counter() - start, hidden=True)


def masked_modules(exercise: Exercise) -> tuple[str, ...]:
    """Modules of the course that must not be there while this exercise's answer runs."""
    closed = [c for c in exercise.closed if not c.startswith("torch:")]
    names = [c if is_course(c) else f"course_lib.{c}" for c in closed]
    return tuple(sorted(name for name in names if not _overlaps(name, _needed(exercise))))


def _needed(exercise: Exercise) -> frozenset[str]:
    return course_modules((*_WORKER, program_of(exercise).partition(":")[0]))


def _overlaps(name: str, needed: Collection[str]) -> bool:
    return any(module == name or module.startswith(f"{name}.") for module in needed)


def judge_file(path: Path, chosen: Iterable[Exercise], **options: Any) -> Judgement:
    """Judge the exercises of `chosen` on a submitted notebook; equal code is judged once in a process.

    All code of the notebook must be equal, cell by cell: an answer that deceives the judge gives a verdict
    to its copies alone. What may depend on how busy the machine was is judged again.

    Raises: Unreadable.
    """
    cells, wanted = code_cells(path), list(chosen)
    asked = json.dumps([cells, [exercise.id for exercise in wanted], repr(sorted(options.items()))])
    key = hashlib.sha256(asked.encode()).digest()
    found = _judged.get(key) or judge_cells(cells, wanted, **options)
    if not found.killed and not any(v.gate in _OF_THE_MOMENT for v in found.verdicts.values()):
        _judged[key] = found
    return found
