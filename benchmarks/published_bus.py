"""Read published bus bandwidths of collectives, and compare `cost.axis_collectives` with them.

Rows are those of a table of NCCL tests: the bus bandwidth of a collective over whole servers. Seconds
follow by NCCL's definition: an all_gather or reduce_scatter of S bytes takes (n-1)/n S/B, an all_reduce
twice that.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from published import Run, arrays, described, number, rows_of

from course_lib.cost.axis_collectives import Machine, all_reduce_time_s, gather_time_s
from course_lib.cost.constants import Array, Calibration, Flags

NAME = "hf_playbook_nccl_busbw.csv"
HARDWARE = "H100-EFA"
SERVER = 8


@dataclass(frozen=True)
class BusTable:
    """Hold collectives of one cluster: ranks, bytes, which are all_reduces, and measured seconds."""

    ranks: Array
    full_bytes: Array
    is_all_reduce: Flags
    seconds: Array
    machine: Machine

    def predict(self, fitted: Calibration) -> Array:
        """Return the seconds of each collective, over neighbouring ranks of whole servers."""
        line = (self.ranks, np.ones_like(self.ranks), self.full_bytes, self.machine, fitted)
        return np.where(self.is_all_reduce, all_reduce_time_s(*line), gather_time_s(*line))

    def every_other(self, first: int) -> BusTable:
        """Return every second row from `first`."""
        machine = Machine(**{f.name: getattr(self.machine, f.name)[first::2] for f in fields(Machine)})
        kept = {f.name: getattr(self, f.name)[first::2] for f in fields(self) if f.name != "machine"}
        return replace(self, **kept, machine=machine)


def read_bus(folder: Path) -> BusTable | None:
    """Read the table if the folder has it. Raises: ValueError for columns nobody reads."""
    if not (folder / NAME).is_file():
        return None
    rows = described(
        rows_of(folder / NAME), lambda row: [number(row, c) for c in ("gpus", "size_mb", "busbw_gb_s")]
    )
    if not rows:
        return None
    ranks, sizes = (np.array([number(row, c) for row in rows]) for c in ("gpus", "size_mb"))
    bandwidth = 1e9 * np.array([number(row, "busbw_gb_s") for row in rows])
    if not (bandwidth > 0).all():
        raise ValueError(f"{NAME} must give bandwidths above 0; got {bandwidth.min():g}. Fix the row.")
    both = np.array([row["collective"] == "AllReduce" for row in rows])
    seconds = np.where(both, 2, 1) * (ranks - 1) / ranks * 1e6 * sizes / bandwidth
    _, _, machine = arrays([Run("", 1.0, {"D": 1, "N": 1}, "nanotron", HARDWARE)] * len(rows))
    return BusTable(ranks, 1e6 * sizes, both, seconds, machine)
