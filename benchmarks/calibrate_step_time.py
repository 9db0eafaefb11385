"""Fit the constants of `cost/step_time` to published runs, all tables together.

    python benchmarks/calibrate_step_time.py --tables FOLDER

Reads the tables that are marked for calibration (`published.py`), minimises robust log errors by
Levenberg-Marquardt with a prior on every constant, and writes `data/step_time_constants.csv`. A constant
whose spread is 0 keeps its value. Accuracy on the other tables: `course bench accuracy --tables FOLDER`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from accuracy import Prepared
from published import Run, Table, read

from course_lib.cost.constants import Array, from_rows

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "data" / "step_time_constants.csv"
ROBUST = 0.15  # log errors beyond this count linearly: published runs have outliers
PRIOR = 0.05  # weight of a constant's prior, against one run
EQUAL_WEIGHT = 40.0  # a table of fewer runs counts as this many


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, required=True, help="folder of published tables")
    tables = [t for t in read(parser.parse_args().tables) if t.calibrates and t.runs]
    rows = list(csv.DictReader(TARGET.open(encoding="utf-8")))
    free = [i for i, row in enumerate(rows) if float(row["spread"]) > 0]
    fitted = fit(tables, rows, free)
    for i, value in zip(free, fitted, strict=True):
        rows[i]["value"] = f"{np.exp(value):.5g}"
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(free)} constants from {sum(len(t.runs) for t in tables)} runs -> {TARGET.name}")


def fit(tables: list[Table], rows: list[dict[str, str]], free: list[int]) -> Array:
    """Return log values of the free constants that minimise the robust errors of all tables."""
    runs: list[Run] = [run for table in tables for run in table.runs]
    prepared = Prepared.of(runs)
    weight = np.concatenate([_weights(table) for table in tables])
    measured = np.log([run.seconds for run in runs])
    start = np.log([float(rows[i]["start"]) for i in free])
    spread = np.array([float(rows[i]["spread"]) for i in free])

    def residuals(values: Array) -> Array:
        changed = [dict(row) for row in rows]
        for i, value in zip(free, values, strict=True):
            changed[i]["value"] = repr(float(np.exp(value)))
        error = np.log(prepared.predict(from_rows(changed))) - measured
        error = np.sign(error) * ROBUST * np.sqrt(2 * (np.sqrt(1 + (error / ROBUST) ** 2) - 1))
        return np.concatenate([weight * error, PRIOR * (values - start) / spread])

    return levenberg_marquardt(residuals, start)


def _weights(table: Table) -> Array:
    count = len(table.runs)
    return np.full(count, np.sqrt(max(1.0, EQUAL_WEIGHT / count)))


def levenberg_marquardt(residuals: Callable[[Array], Array], start: Array, rounds: int = 40) -> Array:
    """Minimise the sum of squares of `residuals` from `start`, with numerical derivatives."""
    values, damping = start.copy(), 1e-2
    error = residuals(values)
    for _ in range(rounds):
        jacobian = np.stack(
            [(residuals(values + step) - error) / 1e-4 for step in 1e-4 * np.eye(len(values))], 1
        )
        squares, slope = jacobian.T @ jacobian, jacobian.T @ error
        before = error @ error
        for _ in range(8):
            damped = squares + damping * np.diag(np.diag(squares) + 1e-9)
            trial = values + np.clip(np.linalg.solve(damped, -slope), -0.5, 0.5)
            found = residuals(trial)
            if found @ found < before:
                break
            damping *= 4
        else:
            return values
        values, error, damping = trial, found, max(damping / 5, 1e-6)
        if before - error @ error < 1e-5 * before:
            break
    return values


if __name__ == "__main__":
    main()
