"""Compare the matmul curve of `cost.kernels` with matmuls timed on an H100 (`data/h100_matmuls.csv`).

Short runs reach more of the peak than a training step does, so only the shape of the curve is compared: the
mean of the logarithms, over BF16 and FP8 together, is taken out. Matmuls below 50 us time their launch and
are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from published import Run, arrays

from course_lib.cost.axis_collectives import Machine
from course_lib.cost.constants import Array, Calibration, Flags
from course_lib.cost.kernels import matmul_time_s
from course_lib.cost.tables import rows

SHORTEST_S = 50e-6


@dataclass(frozen=True)
class MatmulTable:
    """Hold matmuls and their measured seconds; a grouped one counts as one group of it."""

    sides: tuple[Array, Array, Array]
    """rows, cols, inner."""
    eight_bit: Flags
    grouped: Flags
    seconds: Array
    machine: Machine

    def errors(self, fitted: Calibration) -> Array:
        """Return log(predicted / measured), less its mean."""
        found = matmul_time_s(
            *self.sides, self.machine, fitted, eight_bit=self.eight_bit, grouped=self.grouped
        )
        off: Array = np.log(found / self.seconds)
        return off - off.mean()

    def lines(self, fitted: Calibration) -> list[str]:
        """Return a row of the report for each kind of matmul."""
        off = 100 * (np.exp(self.errors(fitted)) - 1)
        kinds = {
            "in BF16": ~self.eight_bit & ~self.grouped, "in FP8": self.eight_bit, "of experts": self.grouped,
        }  # fmt: skip
        return [
            f"| matmuls {name}, one H100 | calibrates | {part.sum()} | {np.abs(off[part]).mean():.1f} | "
            f"{off[part].mean():+.1f} | {np.abs(off[part]).max():.0f} |  | shape of the curve |"
            for name, part in kinds.items()
        ]


def read_matmuls() -> MatmulTable:
    """Read the table that travels with the library."""
    found = []
    for row in rows("h100_matmuls.csv"):
        sides = [float(row[name]) for name in ("rows", "cols", "inner")]
        flops = 2 * float(row["groups"]) * float(np.prod(sides))
        for column in ("bf16_tflops", "fp8_tflops"):
            seconds = flops / (1e12 * float(row[column])) if row[column] else 0.0
            if seconds >= SHORTEST_S:
                one = seconds / float(row["groups"])
                found.append((*sides, column == "fp8_tflops", row["kind"] == "grouped", one))
    columns = [np.array(column) for column in zip(*found, strict=True)]
    _, _, machine = arrays([Run("", 1.0, {"D": 1, "N": 1}, "megatron-core", "H100")] * len(found))
    return MatmulTable(
        (columns[0], columns[1], columns[2]), columns[3], columns[4], columns[5], machine=machine
    )
