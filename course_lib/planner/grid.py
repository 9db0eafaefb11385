"""List the layouts that can run, and count those that each rule leaves out.

The mesh is (pp, dp_replicate, dp_shard, cp, tp), tp innermost.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from course_lib.cost.flops import Recompute
from course_lib.planner.request import Request
from course_lib.planner.stages import Counts, Flags, splits

AXES = ("tp", "cp", "pp", "v", "dp_replicate", "dp_shard", "ep", "zero", "mbs", "recompute")
"""Columns of a table of layouts; recompute is 0 nothing, 1 attention's core, 2 all."""
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
ALL = 0  # in the grid: shard over all data-parallel ranks


def can_run(request: Request, table: Counts) -> Flags:
    """Return which layouts no rule leaves out; memory is none of the rules."""
    columns = dict(zip(AXES, table.T, strict=True))
    layers, chunks = request.config.num_layers, columns["pp"] * columns["v"]
    ends = layers + 2  # embedding and head count as a layer each
    runs: Flags = (chunks <= layers) | (chunks == ends)
    runs &= (request.config.num_heads % columns["tp"] == 0) & (request.seq_len % (2 * columns["cp"]) == 0)
    for rule in _rules(request).values():
        runs &= rule(columns)
    return runs


def candidates(request: Request) -> tuple[Counts, dict[str, int]]:
    """Return the layouts that can run, and rule -> how many it left out."""
    table = _grid(request)
    left_out: dict[str, int] = {}
    for name, rule in _rules(request).items():
        holds = rule(dict(zip(AXES, table.T, strict=True)))
        left_out[name] = int((~holds).sum())
        table = table[holds]
    return table, left_out


def _grid(request: Request) -> Counts:
    """Return all layouts whose axes divide GPUs, heads, sequence, layers and experts, in the order of AXES.

    An axis at a time, and what cannot be goes before the next: all at once a mixture has 75 million rows.
    """
    config, gpus = request.config, request.num_gpus
    layers, powers = config.num_layers, [2**k for k in range(15)]
    c = {"tp": np.array([n for n in powers[:7] if gpus % n == 0 and config.num_heads % n == 0])}
    c = _with(c, "cp", [1, *(n for n in powers[1:8] if gpus % n == 0 and request.seq_len % (2 * n) == 0)])
    c = _with(c, "pp", [n for n in range(1, layers + 1) if gpus % n == 0])
    c = _where(c, gpus % (c["tp"] * c["cp"] * c["pp"]) == 0)
    c = _with(c, "v", [n for n in range(1, 17) if n <= layers])
    chunks = c["pp"] * c["v"]
    can_be = ((c["pp"] > 1) | (c["v"] == 1)) & ((chunks <= layers) | (chunks == layers + 2))
    c = _where(c, can_be & splits(layers, c["pp"], c["v"]))
    c = _with(c, "dp_shard", [*powers, ALL])
    rest = gpus // (c["tp"] * c["cp"] * c["pp"])
    is_new = (c["dp_shard"] != ALL) | ~np.isin(rest, powers)  # all that remain, if no power of two
    c["dp_shard"] = np.where(c["dp_shard"] == ALL, rest, c["dp_shard"])
    c["dp_replicate"] = rest // c["dp_shard"]
    c = _where(c, is_new & (rest % c["dp_shard"] == 0))
    c = _with(c, "ep", [n for n in powers if config.num_experts and config.num_experts % n == 0] or [1])
    c = _with(c, "zero", [0, 1, 2, 3])
    zero, shard, is_all = c["zero"], c["dp_shard"], c["dp_replicate"] == 1
    c = _where(c, np.choose(zero, [shard == 1, is_all, is_all, shard > 1]))  # ZeRO-1 and 2 shard over all
    c = _with(c, "mbs", [1, 2, 4, 8])
    c = _with(c, "recompute", [0, 2])  # fused attention stores no scores: nothing to select
    return np.stack([c[axis] for axis in AXES], axis=1)


def _with(columns: dict[str, Counts], name: str, values: list[int]) -> dict[str, Counts]:
    """Return each row with each value of one more axis."""
    count = len(columns["tp"])
    wide = {axis: np.repeat(column, len(values)) for axis, column in columns.items()}
    return wide | {name: np.tile(np.array(values, dtype=np.int64), count)}


def _where(columns: dict[str, Counts], holds: Flags) -> dict[str, Counts]:
    return {axis: column[holds] for axis, column in columns.items()}


def _rules(request: Request) -> dict[str, Callable[[dict[str, Counts]], Flags]]:
    config = request.config

    def whole_microbatches(c: dict[str, Counts]) -> Flags:
        ranks = c["dp_replicate"] * c["dp_shard"] * c["mbs"]
        holds: Flags = (request.num_sequences % ranks == 0) & (request.num_sequences >= ranks)
        return holds

    def microbatches(c: dict[str, Counts]) -> Counts:
        return request.num_sequences // (c["dp_replicate"] * c["dp_shard"] * c["mbs"])

    def kv_heads(c: dict[str, Counts]) -> Flags:
        holds: Flags = (config.num_kv_heads % c["tp"] == 0) | (c["tp"] % config.num_kv_heads == 0)
        return holds

    one_chunk = {"zero bubble: ZB-H1 has one stage a rank": lambda c: c["v"] == 1}
    return (one_chunk if request.schedule == "zb-h1" else {}) | {
        "kv heads: neither divide tp nor are divided by it": kv_heads,
        "ffn: not divided by tp": lambda c: config.ffn_dim % c["tp"] == 0,
        "batch: data-parallel ranks x micro-batch do not divide it": whole_microbatches,
        "interleaving: micro-batches are no multiple of the stages": lambda c: (
            (c["v"] == 1) | (microbatches(c) % c["pp"] == 0)
        ),
        "experts: ep exceeds data- and context-parallel ranks": lambda c: (
            (c["dp_replicate"] * c["dp_shard"] * c["cp"]) % c["ep"] == 0
        ),
    }
