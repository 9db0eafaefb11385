"""Read published forward and backward times of one block, and compare `step_time` with them.

Rows are Korthikanti et al. (arXiv:2205.05198), table 4: a block of the model of 22 billion on one server,
with and without sequence parallelism and recomputation. A row gives two times.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from published import COLUMNS, Csv, Run, arrays, card, described, gpt, number, rows_of

from course_lib.cost.axis_collectives import Machine
from course_lib.cost.block_time import block_time
from course_lib.cost.constants import Array, Calibration
from course_lib.cost.sizes import ModelSizes, StepLayout

NAME = "korthikanti2022_table4.csv"
COLUMNS[NAME] = (
    "experiment forward_ms backward_ms combined_ms overhead_pct model heads hidden tp mbs seq_len gpu source "
    "confidence"
)


@dataclass(frozen=True)
class LayerTable:
    """Hold blocks and their measured seconds, [rows, 2]: forward, and backward with what it recomputes."""

    blocks: tuple[ModelSizes, StepLayout, Machine]
    seconds: Array

    def predict(self, fitted: Calibration) -> Array:
        """Return seconds of each block, as `seconds`."""
        block, again, *_ = block_time(*self.blocks, fitted)
        return np.stack([block.forward, block.backward + again], 1)

    def line(self, fitted: Calibration) -> str:
        """Return one row of the report."""
        off = 100 * (self.predict(fitted) / self.seconds - 1)
        return (
            f"| Korthikanti 2022, one block | calibrates | {off.size} | {np.abs(off).mean():.1f} | "
            f"{off.mean():+.1f} | {np.abs(off).max():.0f} |  | forward and backward alone |"
        )


def read_layer(folder: Path) -> LayerTable | None:
    """Read the table if the folder has it. Raises: ValueError for columns nobody reads."""
    if not (folder / NAME).is_file():
        return None
    rows = described(rows_of(folder / NAME), lambda row: (_sizes(row), card(row), _seconds(row)))
    if not rows:
        return None
    runs = [Run(row["experiment"], 1.0, _sizes(row), "megatron", card(row)) for row in rows]
    seconds = [_seconds(row) for row in rows]
    return LayerTable(arrays(runs), np.array(seconds))


def _seconds(row: Csv) -> list[float]:
    return [number(row, f"{name}_ms") / 1e3 for name in ("forward", "backward")]


def _sizes(row: Csv) -> dict[str, float]:
    name = row["experiment"].lower()
    recompute = 1 if "selective" in name else 2 if "(full)" in name else 0
    return gpt(row, L=1, tp="tp", mbs="mbs", recompute=recompute, sp=float("sequence" in name))
