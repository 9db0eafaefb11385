"""Hold the measured constants of the step-time model: one table, fitted once on published runs.

`benchmarks/calibrate_step_time.py` fits them and writes `data/step_time_constants.csv`; nothing here is
fitted a table at a time. A constant is one number, or one for each GPU generation, network fabric or
software stack. Labs 07 and 12 use the model. Production planners (vTrain, Calculon) profile kernels instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from course_lib.cost.tables import rows

Array = NDArray[np.float64]
Index = NDArray[np.int64]
Flags = NDArray[np.bool_]

GENERATIONS = ("A100", "H100", "B200", "GB200")
FABRICS = ("InfiniBand HDR", "InfiniBand NDR", "EFA", "RoCE")
TP_OVERLAP = ("none", "ring", "pipe")
STACKS = ("megatron-deepspeed", "megatron", "megatron-core", "llm-foundry", "nanotron", "torchtitan")


@dataclass(frozen=True)
class Calibration:
    """Give every constant by name: an array with one value, or one a generation, fabric or stack.

    `at(name, index)` picks the value of each row's generation, fabric or stack.
    """

    values: Mapping[str, Array]

    def __getitem__(self, name: str) -> float:
        """Return a global constant."""
        return float(self.values[name][0])

    def at(self, name: str, index: Index) -> Array:
        """Return a constant that depends on the generation, the fabric or the stack, for each row."""
        picked: Array = self.values[name][index]
        return picked


@cache
def calibration() -> Calibration:
    """Read the fitted constants from `data/step_time_constants.csv`.

    Raises: ValueError if it gives one for some generations, fabrics or stacks, and not for others.
    """
    return from_rows(rows("step_time_constants.csv"))


def from_rows(table: Sequence[Mapping[str, str]]) -> Calibration:
    """Collect rows (constant, of, value) into arrays in the order of GENERATIONS, FABRICS or STACKS."""
    found: dict[str, dict[str, float]] = {}
    for row in table:
        found.setdefault(row["constant"], {})[row["of"]] = float(row["value"])
    return Calibration({name: _in_order(name, given) for name, given in found.items()})


def _in_order(name: str, given: Mapping[str, float]) -> Array:
    for known in (("all",), GENERATIONS, FABRICS, STACKS):
        if set(given) == set(known):
            return np.array([given[key] for key in known])
    raise ValueError(
        f"data/step_time_constants.csv must give {name} for all, for each generation "
        f"({', '.join(GENERATIONS)}), each fabric ({', '.join(FABRICS)}) or each stack "
        f"({', '.join(STACKS)}); got {', '.join(given)}. Add the missing rows."
    )
