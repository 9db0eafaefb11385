"""Compare predicted with published step times: `course bench accuracy --tables FOLDER [--rows]`.

For each table: mean absolute error (MAPE), bias, largest error, and skill = 1 - MAPE / MAPE of the best
constant efficiency. Where a table scales one run over GPUs: the error of the scaling from its smallest run.
Where layouts compete: Kendall's tau and regret (how much slower the predicted best is than the real best).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from published import Run, Table, arrays, read

from course_lib.cost.constants import Array, Calibration, calibration
from course_lib.cost.step_time import StepTime, step_time

ROOT = Path(__file__).resolve().parents[1]


def expand(runs: Sequence[Run]) -> tuple[list[Run], list[int]]:
    """Give a run with choices one row a choice; return the rows and the run each belongs to."""
    rows, owner = [], []
    for i, run in enumerate(runs):
        count = len(next(iter(run.choices.values()), [0.0]))
        for k in range(count):
            chosen = {name: values[k] for name, values in run.choices.items()}
            rows.append(Run(run.label, run.seconds, {**run.sizes, **chosen}, run.stack, run.hardware))
            owner.append(i)
    return rows, owner


def terms_of(runs: Sequence[Run], fitted: Calibration) -> tuple[StepTime, list[int]]:
    """Predict all runs; return the terms of all choices, and the row that is fastest for each run."""
    rows, owner = expand(runs)
    found = step_time(*arrays(rows), fitted)
    total = found.total_s
    best: dict[int, int] = {}
    for row, run in enumerate(owner):
        if run not in best or total[row] < total[best[run]]:
            best[run] = row
    return found, [best[i] for i in range(len(runs))]


def predict(runs: Sequence[Run], fitted: Calibration) -> Array:
    """Return predicted seconds of each run."""
    found, chosen = terms_of(runs, fitted)
    total: Array = found.total_s[chosen]
    return total


def errors(table: Table, fitted: Calibration) -> dict[str, float]:
    """Return the error summary of a table, in percent where it is one."""
    measured = np.array([run.seconds for run in table.runs])
    predicted = predict(table.runs, fitted)
    off = predicted / measured - 1
    found = {
        "runs": len(measured), "MAPE": 100 * np.abs(off).mean(), "bias": 100 * off.mean(),
        "max": 100 * np.abs(off).max(), "skill": 1 - np.abs(off).mean() / _constant_error(table, measured),
    }  # fmt: skip
    scaled = _scaling(table, measured, predicted)
    if scaled:
        found["scaling MAPE"] = 100 * float(np.abs(scaled).mean())
    return found | _ranking(table, measured, predicted)


def _constant_error(table: Table, measured: Array) -> float:
    """MAPE of the best constant efficiency: seconds proportional to FLOPs over peak."""
    model, layout, machine = arrays(expand(table.runs)[0])
    owner = expand(table.runs)[1]
    first = [owner.index(i) for i in range(len(table.runs))]
    params = (
        model.num_layers * (model.attention_params + model.expert_params) + model.vocab_size * model.model_dim
    )
    tokens = layout.microbatch_size * layout.num_microbatches * layout.dp * layout.seq_len
    attention = 12 * model.num_layers * model.model_dim * layout.seq_len
    ideal = ((6 * params + attention) * tokens / layout.world_size / machine.peak_flops_per_s)[first]
    ratio = ideal / measured
    candidates = 1 / np.quantile(ratio, np.linspace(0, 1, 101))
    return float(min(np.abs(c * ratio - 1).mean() for c in candidates))


def _scaling(table: Table, measured: Array, predicted: Array) -> list[float]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, run in enumerate(table.runs):
        if run.scaling:
            groups[run.scaling].append(i)
    off = []
    for members in groups.values():
        members.sort(key=lambda i: table.runs[i].sizes["dp"])
        first = members[0]
        off += [(predicted[i] / predicted[first]) / (measured[i] / measured[first]) - 1 for i in members[1:]]
    return off


def _ranking(table: Table, measured: Array, predicted: Array) -> dict[str, float]:
    groups: dict[Any, list[int]] = defaultdict(list)
    for i, run in enumerate(table.runs):
        if run.ranking:
            groups[run.ranking].append(i)
    taus, regrets, weights = [], [], []
    for chosen in groups.values():
        if len(chosen) < 3:
            continue
        real, said = measured[chosen], predicted[chosen]
        taus.append(kendall_tau(real, said))
        weights.append(len(chosen))
        regrets.append(100 * (real[said.argmin()] / real.min() - 1))
    if not taus:
        return {}
    by_run = float(np.average(taus, weights=weights))
    return {"tau": float(np.mean(taus)), "tau by run": by_run, "median regret": float(np.median(regrets))}


def kendall_tau(first: Array, second: Array) -> float:
    """Return the share of pairs that both orders agree on, minus the share they do not."""
    a, b = np.sign(first[:, None] - first[None, :]), np.sign(second[:, None] - second[None, :])
    return float((a * b).sum() / (len(first) * (len(first) - 1)))


def line(table: Table, found: dict[str, float]) -> str:
    """Return one row of the report."""
    use = "calibrates" if table.calibrates else "validates"
    more = ", ".join(
        f"{k} {v:.3g}"
        for k, v in found.items()
        if k in ("scaling MAPE", "tau", "tau by run", "median regret")
    )
    return (
        f"| {table.name} | {use} | {found['runs']:.0f} | {found['MAPE']:.1f} | {found['bias']:+.1f} | "
        f"{found['max']:.0f} | {found['skill']:.2f} | {more} |"
    )


HEAD = "| table | use | runs | MAPE % | bias % | max % | skill | more |\n|---|---|---|---|---|---|---|---|"


def print_rows(table: Table, fitted: Calibration) -> None:
    """Print each run with its terms in seconds."""
    found, chosen = terms_of(table.runs, fitted)
    print(f"\n## {table.name}")
    for run, row in zip(table.runs, chosen, strict=True):
        terms = ", ".join(
            f"{name} {value[row]:.3g}" for name, value in found.terms().items() if value[row] > 0
        )
        total = found.total_s[row]
        print(f"{run.label}: measured {run.seconds:.3g} s, predicted {total:.3g} s ({terms})")


def main() -> None:
    """Print the report; write docs/accuracy.md unless rows are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", type=Path, required=True, help="folder of published tables")
    parser.add_argument("--rows", action="store_true", help="print every run with its terms")
    given = parser.parse_args()
    fitted = calibration()
    tables = [table for table in read(given.tables) if table.runs]
    report = [HEAD, *(line(table, errors(table, fitted)) for table in tables)]
    left = [f"- {table.name}: {why}: {n}" for table in tables for why, n in table.left_out.items() if n]
    print("\n".join([*report, "", "Left out (rows the model does not describe):", *left]))
    if given.rows:
        for table in tables:
            print_rows(table, fitted)


if __name__ == "__main__":
    main()
