"""Read SimuMax's published step times: Megatron-LM's models with fewer layers on one server of B200."""

from __future__ import annotations

from collections.abc import Iterator

from published import READERS, Csv, Run, Table, card, named, number, sizes

SIMUMAX = "simumax_b200_no_cp.csv"  # its columns: published_memory, which reads its peaks


def _simumax(rows: list[Csv]) -> Iterator[Table]:
    runs = [_run(row) for row in rows]
    kinds = {name: [run for run in runs if ("experts" in run.sizes) is mixed] for name, mixed in KINDS}
    yield from (Table(f"SimuMax, 8 B200, {name}", found) for name, found in kinds.items())


DENSE = {"deepseekv2": 12288.0, "deepseekv3": 18432.0}
"""Width of the first layer, which has no experts: of four layers one, as the measured memory says, too."""
KINDS = (("dense", False), ("mixtures of experts", True))


def _run(row: Csv) -> Run:
    """Distributed optimizer, gradients in float32, both overlapped: what its strategy files say."""
    found = named(row["model"], row) | sizes(
        row, L="layers", S="seq_len", mbs="mbs", tp="tp", pp="pp", dp="dp", cp="cp", m="microbatches"
    )
    found |= {"zero": 1, "flash": 1, "grad_bytes": 4, "overlap": 1, "gather": 1, "sp": float(found["tp"] > 1)}
    if "experts" in found:
        found |= {"ep": number(row, "ep", 1.0), "etp": 1.0, "dense": 1.0, "F_dense": DENSE[row["model"]]}
    return Run(row["case"], number(row, "real_ms") / 1e3, found, "megatron-core", card(row))


READERS[SIMUMAX] = _simumax
