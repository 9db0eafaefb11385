"""Hold what was measured on one GPU: a row per kernel or collective, conditions in lines that start with #.

A row is seconds of one call. Sides are those of a matmul: [rows, inner] @ [inner, cols], `groups` of them;
attention's are queries, keys and the size of a head, `groups` = sequences x heads, causal. `bytes` of a
collective is the whole tensor, before or after it is split; of a copy what it reads.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from course_lib.cost.tables import read_lines
from course_lib.planner.request import choice_of

MATMULS = ("matmul", "grouped", "batched")
ATTENTION = ("attention_forward", "attention_backward")
COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "send")
KINDS = (*MATMULS, "copy", *ATTENTION, *COLLECTIVES)
PRECISIONS, HELD = ("bf16", "fp8"), ("short", "sustained")
NEEDED = {
    **dict.fromkeys((*MATMULS, *ATTENTION), ("groups", "rows", "cols", "inner")),
    **dict.fromkeys(COLLECTIVES, ("ranks", "per_server", "bytes")),
    "copy": ("bytes",),
}
"""Kind -> columns that it must fill."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Hold one measurement. `how` names the library where there are several; 0 is what a kind has not."""

    kind: str
    precision: str = "bf16"
    held: str = "short"
    """"short": bursts with pauses between; "sustained": for seconds without pause, at the power limit."""
    how: str = ""
    groups: int = 0
    rows: int = 0
    cols: int = 0
    inner: int = 0
    ranks: int = 0
    per_server: int = 0
    """Of the ranks, how many share a server."""
    bytes: int = 0
    seconds: float
    calls: int = 0
    sm_mhz: int = 0
    watts: int = 0

    @property
    def flops(self) -> float:
        """FLOPs of one call: 2 per number of a matmul, half of 4 per score of causal attention, 2.5 times in
        backward."""
        sides = float(self.groups) * self.rows * self.cols * self.inner
        return {"attention_backward": 5.0}.get(self.kind, 2.0) * sides


COLUMNS = tuple(f.name for f in fields(Row))
REQUIRED = ("kind", "seconds")


@dataclass(frozen=True)
class Measured:
    """Hold the rows of a file and the conditions of its first lines, name -> text."""

    rows: tuple[Row, ...]
    conditions: Mapping[str, str] = field(default_factory=dict)


def written(rows: Sequence[Row], conditions: Mapping[str, str]) -> str:
    """Return the file's text."""
    file = io.StringIO()
    for name, value in conditions.items():
        file.write(f"# {name}: {value}\n")
    writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        plain = {name: value for name, value in asdict(row).items() if value not in (0, "")}
        writer.writerow({**plain, "seconds": f"{row.seconds:.6g}"})
    return file.getvalue()


def read_measured(path: Path) -> Measured:
    """Read a file of `course calibrate measure`, or one of the same form.

    Raises: ValueError for missing columns, for a row that cannot be, naming its line, and for no rows.
    """
    conditions, lines = read_lines(path, REQUIRED)
    rows = tuple(_row(row, f"line {number} of {path.name}") for number, row in lines)
    return Measured(rows, conditions)


def seconds_of(text: str, where: str, column: str = "seconds") -> float:
    """Read seconds. Raises: ValueError for a unit, 0, a negative or infinite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ValueError(
            f"{where}: {column} must be a number more than 0, in seconds, without a unit; got {text!r}. "
            "Write 0.0012 for 1.2 ms."
        )
    return value


def _row(cells: Mapping[str, str], where: str) -> Row:
    kind = cells["kind"]
    found = {"kind": kind, "seconds": seconds_of(cells["seconds"], where)}
    choice_of(f"{where}: kind", kind, KINDS)
    for name, known in (("precision", PRECISIONS), ("held", HELD)):
        if cells.get(name):
            found[name] = choice_of(f"{where}: {name}", cells[name], known)
    given = {"groups": "1"} | {name: text for name, text in cells.items() if text}
    for name in NEEDED[kind]:
        text = given.get(name, "")
        if not text.isdecimal() or int(text) < 1:
            raise ValueError(
                f"{where}: {name} of {kind} must be a whole number of 1 or more; got {text or 'nothing'!r}. "
                f"{kind} needs {', '.join(NEEDED[kind])}."
            )
        found[name] = int(text)
    row = Row(**found, how=cells.get("how", ""))  # type: ignore[arg-type]  # each is of its field's type
    if row.ranks and (row.ranks < 2 or row.ranks % min(row.per_server, row.ranks)):
        raise ValueError(
            f"{where}: ranks must be 2 or more, the same number on each server; got ranks={row.ranks}, "
            f"per_server={row.per_server}. Give whole servers."
        )
    return row
