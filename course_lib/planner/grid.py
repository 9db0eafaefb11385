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
    config, gpus = request.config, request.num_gpus
    powers = [2**k for k in range(15)]
    axes = [
        [n for n in powers if gpus % n == 0 and config.num_heads % n == 0 and n <= 64],
        [1, *(n for n in powers[1:8] if gpus % n == 0 and request.seq_len % (2 * n) == 0)],
        [n for n in range(1, config.num_layers + 1) if gpus % n == 0],
        [n for n in range(1, 17) if n <= config.num_layers],
        [*powers, ALL],
        [n for n in powers if config.num_experts and config.num_experts % n == 0] or [1],
        [0, 1, 2, 3],
        [1, 2, 4, 8],
        [0, 2],  # fused attention stores no scores: nothing to select
    ]
    tp, cp, pp, v, shard, ep, zero, mbs, recompute = (
        a.ravel() for a in np.meshgrid(*(np.array(a, dtype=np.int64) for a in axes), indexing="ij")
    )
    rest = gpus // (tp * cp * pp)
    exists = (shard != ALL) | ~np.isin(rest, powers)  # all that remain, where they are no power of two
    shard = np.where(shard == ALL, rest, shard)
    chunks = pp * v  # equal chunks, or equal if embedding and head count as a layer each (Llama 3's 126)
    with_ends = config.num_layers + 2
    exists &= (gpus % (tp * cp * pp) == 0) & ((pp > 1) | (v == 1))
    exists &= (chunks <= config.num_layers) | (chunks == with_ends)
    exists &= rest % np.maximum(shard, 1) == 0
    exists &= splits(config.num_layers, pp, v)
    exists &= (zero > 0) | (shard == 1)  # nothing is sharded without ZeRO
    exists &= ((zero != 1) & (zero != 2)) | (shard == rest)  # ZeRO-1 and 2 shard over all
    exists &= (zero != 3) | (shard > 1)
    kept = [a[exists] for a in (tp, cp, pp, v, shard, ep, zero, mbs, recompute)]
    tp, cp, pp, v, shard, ep, zero, mbs, recompute = kept
    replicate = gpus // (tp * cp * pp * shard)
    return np.stack([tp, cp, pp, v, replicate, shard, ep, zero, mbs, recompute], axis=1)


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
