"""Measure the course's numbers on this machine: print them and write docs/benchmarks.md.

Each benchmarks/bench_*.py has `rows()`, a list of (name, value, unit, note): one table, titled by the
first line of its docstring; one that this machine cannot measure gives no rows, and says why in SKIPPED.
A number that matters is a ratio of two measurements of the same run, never
seconds alone.

    python benchmarks/run.py            all
    python benchmarks/run.py launch     one; the tables of the others stay as they are in docs/benchmarks.md
"""

from __future__ import annotations

import importlib
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import torch

Row = tuple[str, float, str, str]

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "benchmarks.md"
INTRODUCTION = """# Benchmarks

Written by `make bench`. Ratios (x) compare measurements made one after the other in the same run; seconds
depend on the machine and are there for scale.
"""


def main(names: list[str]) -> int:
    """Run the chosen benchmarks; return the exit status."""
    known = sorted(path.stem for path in HERE.glob("bench_*.py"))
    chosen = [name if name.startswith("bench_") else f"bench_{name}" for name in names] or known
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        print(f"names must be among {', '.join(known)}; got {', '.join(unknown)}. Name one of them.")
        return 1
    sections = read_sections(PAGE.read_text(encoding="utf-8")) if PAGE.exists() else {}
    for name in chosen:
        found = section(name)
        sections |= {name: found} if found else {}
        print(found or f"{name}: {importlib.import_module(name).SKIPPED}", flush=True)
    text = "\n".join([INTRODUCTION, *(sections[name] for name in known if name in sections)])
    PAGE.write_text(text, encoding="utf-8")
    print(f"wrote {PAGE.relative_to(HERE.parent)}")
    return 0


def section(name: str) -> str:
    """Run one benchmark and return its part of the page; nothing if it measured nothing here."""
    module = importlib.import_module(name)
    where, rows = machine(), module.rows()
    if not rows:
        return ""
    title = (module.__doc__ or name).strip().splitlines()[0].rstrip(".")
    return f"<!-- {name} -->\n## {title}\n\n{where}\n\n{markdown(rows)}\n"


def machine() -> str:
    """Return what the numbers depend on, without naming the machine: its load is that of the last minute."""
    cores, memory_gb = psutil.cpu_count(), psutil.virtual_memory().total / 1e9
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    load = f"load {psutil.getloadavg()[0]:.0f} before"
    gpu = f"{torch.cuda.get_device_name()}; " if torch.cuda.is_available() else ""
    return f"{gpu}{cores} cores ({platform.machine()}, {memory_gb:.0f} GB), {versions}; {load}"


def markdown(rows: Sequence[Row]) -> str:
    """Return `rows` as a table; a number has three digits."""
    lines = [f"| {name} | {value:.3g} {unit} | {note} |" for name, value, unit, note in rows]
    return "\n".join(["| measured | value | note |", "| --- | ---: | --- |", *lines])


def read_sections(page: str) -> dict[str, str]:
    """Return {benchmark: its part of the page} of an earlier run."""
    pieces = re.split(r"^<!-- (bench_\w+) -->\n", page, flags=re.MULTILINE)
    return {
        name: f"<!-- {name} -->\n{text.rstrip()}\n"
        for name, text in zip(pieces[1::2], pieces[2::2], strict=True)
    }


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    raise SystemExit(main(sys.argv[1:]))
