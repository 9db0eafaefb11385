"""Read SimuMax's published step times: Megatron-LM's dense models with fewer layers on one server of B200."""

from __future__ import annotations

from collections.abc import Iterator

from published import MODELS, READERS, Csv, NotDescribed, Run, Table, card, named, number, sizes

SIMUMAX = "simumax_b200_no_cp.csv"  # its columns: published_memory, which reads its peaks


def _simumax(rows: list[Csv]) -> Iterator[Table]:
    yield Table("SimuMax, 8 B200, dense", [_run(row) for row in rows])


def _run(row: Csv) -> Run:
    """Distributed optimizer, gradients in float32, both overlapped: what its strategy files say."""
    if row["model"] not in MODELS:
        raise NotDescribed(row, "latent attention")
    found = named(row["model"]) | sizes(
        row, L="layers", S="seq_len", mbs="mbs", tp="tp", pp="pp", dp="dp", cp="cp", m="microbatches"
    )
    found |= {"zero": 1, "flash": 1, "grad_bytes": 4, "overlap": 1, "gather": 1, "sp": float(found["tp"] > 1)}
    return Run(row["case"], number(row, "real_ms") / 1e3, found, "megatron-core", card(row))


READERS[SIMUMAX] = _simumax
