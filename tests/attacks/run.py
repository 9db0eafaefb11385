"""`make attack`: hand in every known attack beside honest students, grade all, print attack x verdict.

The attacker must get what the answer deserves, the honest students their full marks, and what was handed in
must be as it was.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from known import ATTACKS, RIGHT
from rich.console import Console
from rich.table import Table

from course_lib.staff import autograde, build, handed_in
from course_lib.staff.gradebook import Course
from course_lib.staff.ledger import LEDGER, Entry, Ledger
from course_lib.staff.source import notebook_of
from course_lib.staff.submissions import answer_cells, answers_of, filled_in

LAB = "00_start_here"
ROOT = Path(__file__).resolve().parents[2]
FULL = 2.0
# Files instead of notebooks: name, content, wanted state.
FILES = (
    ("not JSON", b"{", "unreadable"),
    ("empty", b"", "unreadable"),
    ("not a notebook", b"[1, 2]", "unreadable"),
    ("deeply nested", b"[" * 1_000_000, "unreadable"),
    ("200 MB", b" " * 200_000_000, "unreadable"),
)


def main(chosen: list[str]) -> int:
    """Run all attacks, or those whose names are given; return how many ended wrong."""
    console = Console(width=110)
    with tempfile.TemporaryDirectory(prefix="course_attacks_") as name:
        root = Path(name)
        wanted = hand_in_all(root, chosen)
        before = {p: p.stat().st_mtime_ns for p in (root / handed_in.SUBMITTED).rglob("*")}
        start = time.monotonic()
        autograde.command(root, LAB, console, jobs=2)
        seconds = time.monotonic() - start
        entries = {entry.student: entry for entry in Ledger(root / LEDGER).entries(LAB)}
        changed = {p: p.stat().st_mtime_ns for p in (root / handed_in.SUBMITTED).rglob("*")} != before
    bad = show(console, wanted, entries)
    if changed:
        console.print("what was handed in has changed")
    console.print(f"{len(wanted)} submissions, {bad} wrong ({seconds:.0f} s)", highlight=False)
    return bad + int(changed)


def hand_in_all(root: Path, chosen: list[str]) -> dict[str, tuple[float | None, str]]:
    """Make the class; return {student: (points of rank_hello, wanted state or "")}."""
    release, right = released(root)
    wanted: dict[str, tuple[float | None, str]] = {}
    for attack in ATTACKS:
        if chosen and attack.name not in chosen:
            continue
        student = attack.name.replace("/", "_")
        text = filled_in(release, right | {"rank_hello": attack.answer_cell()})
        write(root, student, (with_cell(text, attack.cell) if attack.cell else text).encode())
        wanted[student] = (attack.wanted, "")
    for name, data, state in () if chosen else FILES:
        write(root, name, data)
        wanted[name] = (None, state)
    for number in range(3):
        write(root, f"honest {number}", filled_in(release, right | {"rank_hello": RIGHT}).encode())
        wanted[f"honest {number}"] = (FULL, "graded")
    return wanted


def released(root: Path) -> tuple[str, dict[str, str]]:
    """Release lab 00 in `root`; return the release and the reference's answers."""
    (root / "solutions").mkdir()
    shutil.copy(ROOT / "solutions" / f"{LAB}.py", root / "solutions")
    lab = build.find_lab(root, LAB)
    build.replace_text(lab.solution, build.text_of(notebook_of(lab.source, build.default_catalog())))
    release = Course(root).release(LAB).read_text(encoding="utf-8")
    return release, answers_of(nbformat.read(lab.solution, as_version=4))


def write(root: Path, student: str, data: bytes) -> None:
    """Hand in one file."""
    folder = root / handed_in.SUBMITTED / student / LAB
    folder.mkdir(parents=True)
    (folder / f"{LAB}.ipynb").write_bytes(data)


def with_cell(text: str, cell: str) -> str:
    """Put a hostile cell above the first answer."""
    notebook = nbformat.reads(text, as_version=4)
    first = notebook.cells.index(next(iter(answer_cells(notebook).values())))
    notebook.cells.insert(first, nbformat.v4.new_code_cell(cell))
    return str(nbformat.writes(notebook))


def show(console: Console, wanted: dict[str, tuple[float | None, str]], entries: dict[str, Entry]) -> int:
    """Print attack x verdict; return how many are wrong."""
    table = Table(title="attacks")
    for head in ("attack", "state", "points", "seconds", "verdict"):
        table.add_column(head)
    bad = 0
    for student, (points, state) in wanted.items():
        entry = entries.get(student)
        verdict = entry.verdicts.get("rank_hello") if entry else None
        got = verdict["score"] if verdict else None
        others = sum(v["score"] for n, v in entry.verdicts.items() if n != "rank_hello") if entry else 0.0
        right = entry is not None and entry.recorded and got == points and state in ("", entry.state)
        right = right and (points is None or others == 11.0)
        bad += not right
        said = (verdict["gate"] or "full marks" if got else verdict["gate"]) if verdict else ""
        found = entry.state if entry else "none"
        row = (found, "" if got is None else f"{got:g}", f"{entry.seconds:.0f}" if entry else "", said)
        table.add_row(student, *row, style="" if right else "red")
    console.print(table)
    return bad


if __name__ == "__main__":
    sys.exit(min(1, main(sys.argv[1:])))
