"""Fit the constants of `cost/step_time` to published runs, all tables together.

    python benchmarks/calibrate_step_time.py --tables FOLDER [--held-out]

Reads the tables that are marked for calibration (`published.py`), minimises robust log errors by
Levenberg-Marquardt with a prior on every constant, and writes `data/step_time_constants.csv`. A constant
whose spread is 0 keeps its value. With --held-out it fits every second row instead and writes only
`data/step_time_held_out.csv`: the errors of the rows it saw and of those it did not. Accuracy on the
other tables: `course bench accuracy --tables FOLDER`.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from accuracy import Prepared, errors
from measured_matmuls import read_matmuls
from published import Table, read
from published_bus import BusTable, read_bus
from published_layer import LayerTable, read_layer

from course_lib.calibrate.least_squares import PRIOR, levenberg_marquardt, robust
from course_lib.cost.constants import Array, from_rows

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "data" / "step_time_constants.csv"
HELD_OUT = ROOT / "data" / "step_time_held_out.csv"
TABLE_WEIGHT, RUN_WEIGHT = 100.0, 4.0  # tables count the same, but a run of a small one at most so much


def main() -> None:
    """Fit and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, required=True, help="folder of published tables")
    parser.add_argument("--held-out", action="store_true", help="fit half of the rows, report both halves")
    given = parser.parse_args()
    tables, bus = [t for t in read(given.tables) if t.calibrates and t.runs], read_bus(given.tables)
    rows = list(csv.DictReader(TARGET.open(encoding="utf-8")))
    if given.held_out:
        _write(HELD_OUT, held_out(tables, bus, rows))
        return
    _write(TARGET, fit(tables, bus, rows, read_layer(given.tables)))
    print(f"constants from {sum(len(t.runs) for t in tables)} runs -> {TARGET.name}")


def held_out(tables: list[Table], bus: BusTable | None, rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Fit even rows; return each table's mean absolute errors, of rows that were fitted and of the others."""
    halves = [[replace(t, runs=t.runs[k::2]) for t in tables] for k in (0, 1)]
    fitted = from_rows(fit(halves[0], bus and bus.every_other(0), rows))
    found = []
    for seen, unseen in zip(*halves, strict=True):
        off = [f"{errors(half, fitted)['MAPE']:.1f}" if half.runs else "" for half in (seen, unseen)]
        found.append({"table": seen.name, "seen_percent": off[0], "unseen_percent": off[1]})
        print(f"{seen.name}: seen {off[0]}%, unseen {off[1]}%")
    return found


def fit(
    tables: list[Table],
    bus: BusTable | None,
    rows: list[dict[str, str]],
    layer: LayerTable | None = None,
) -> list[dict[str, str]]:
    """Return the rows of the constants with values that minimise the robust errors of all tables."""
    free = [i for i, row in enumerate(rows) if float(row["spread"]) > 0]
    prepared = Prepared.of([run for table in tables for run in table.runs])
    weight = np.concatenate([_weights(table) for table in tables])
    measured = np.log([run.seconds for table in tables for run in table.runs])
    start = np.log([float(rows[i]["start"]) for i in free])
    spread = np.array([float(rows[i]["spread"]) for i in free])
    matmuls = read_matmuls()

    def changed(values: Array) -> list[dict[str, str]]:
        found = [dict(row) for row in rows]
        for i, value in zip(free, values, strict=True):
            found[i]["value"] = f"{np.exp(value):.9g}"
        return found

    def residuals(values: Array) -> Array:
        fitted = from_rows(changed(values))
        parts = [
            weight * robust(np.log(prepared.predict(fitted)) - measured),
            robust(matmuls.errors(fitted)),
            PRIOR * (values - start) / spread,
        ]
        if bus is not None:
            parts.append(robust(np.log(bus.predict(fitted) / bus.seconds)))
        if layer is not None:
            parts.append(robust(np.log(layer.predict(fitted) / layer.seconds)).ravel())
        return np.concatenate(parts)

    found = changed(levenberg_marquardt(residuals, start))
    for i in free:
        found[i]["value"] = f"{float(found[i]['value']):.5g}"
    return found


def _write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _weights(table: Table) -> Array:
    count = len(table.runs)
    return np.full(count, np.sqrt(min(TABLE_WEIGHT / count, RUN_WEIGHT)))


if __name__ == "__main__":
    main()
