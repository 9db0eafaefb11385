"""Compare what is predicted to fit into memory with what ran: the playbook's runs, those that failed, too.

A run is said to fit if its peak by formula, times what the allocator holds over it, stays below nine tenths
of the memory: the same two numbers from which the step-time model expects stalls. The source prints one
status for out-of-memory and for crashes. Two kinds of failure are no matter of memory: as many stages as
layers or more, and tied tables on two stages under plain data parallelism; a layout that also ran did fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from published import HARDWARE, Csv, Run, card, described, number, playbook_sizes, rows_of
from published_used import used_bytes

from course_lib.cost.constants import Calibration, Flags

NAME = "hf_playbook_runs_1_to_8_nodes.csv"
FULL = 0.9
COLUMNS = "fits in memory | use | runs | right % | of those that ran | of those that failed | without crashes"
HEAD = f"| {COLUMNS} |\n|---|---|---|---|---|---|---|"


@dataclass(frozen=True)
class FitsTable:
    """Hold which runs ran, which were said to fit, and which failures were crashes."""

    name: str
    use: str
    ran: Flags
    fits: Flags
    crashed: Flags

    def line(self) -> str:
        """Return one row of the report; parts without a run stay empty."""
        right = self.ran == self.fits
        parts = (np.ones_like(right), self.ran, ~self.ran, ~self.crashed)
        shown = [f"{100 * right[part].mean():.1f}" if part.any() else "" for part in parts]
        return f"| {self.name} | {self.use} | {len(right)} | {' | '.join(shown)} |"


def read_fits(folder: Path, fitted: Calibration) -> list[FitsTable]:
    """Read the playbook's runs if the folder has them. Raises: ValueError for columns nobody reads."""
    if not (folder / NAME).is_file():
        return []
    rows = described(
        rows_of(folder / NAME), lambda row: (playbook_sizes(row), card(row), number(row, "nodes"))
    )
    if not rows:
        return []
    small = np.array([number(row, "nodes") <= 2 for row in rows])
    runs = [Run("", 1.0, playbook_sizes(row), "nanotron", card(row, H100="H100-EFA")) for row in rows]
    memory = np.array([HARDWARE[run.hardware][2] for run in runs])
    fits = used_bytes(runs) * fitted["memory_slack"] <= FULL * memory
    ran = np.array([row["status"] == "ok" for row in rows])
    crashed = _crashes(rows, ran)
    kinds = (("1 and 2 servers", "calibrates", small), ("4 servers and more", "validates", ~small))
    return [
        FitsTable(f"playbook, {name}", use, ran[part], fits[part], crashed[part])
        for name, use, part in kinds
        if part.any()
    ]


def _crashes(rows: list[Csv], ran: Flags) -> Flags:
    did_run = {_layout(row) for row, good in zip(rows, ran, strict=True) if good}
    refused = [number(row, "pp") >= number(row, "layers") or _splits_tied_tables(row) for row in rows]
    again = [_layout(row) in did_run for row in rows]
    found: Flags = ~ran & (np.array(refused) | np.array(again))
    return found


def _splits_tied_tables(row: Csv) -> bool:
    plain = number(row, "zero_stage") == 0 and number(row, "dp") > 1
    return plain and number(row, "pp") > 1 and number(row, "tied_embeddings") == 1


def _layout(row: Csv) -> tuple[str, ...]:
    return tuple(row[name] for name in ("model", "nodes", "tp", "pp", "dp", "zero_stage", "mbs"))
