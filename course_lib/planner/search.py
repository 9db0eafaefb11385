"""Enumerate layouts as arrays, leave out what cannot run and say why, price the rest, rank.

The mesh is (pp, dp_replicate, dp_shard, cp, tp), tp innermost. Every count of layouts that a rule leaves out
is kept: a plan that finds nothing says which rule was last, and by how much memory was short.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from course_lib.config import ModelConfig
from course_lib.cost.constants import STACKS, TP_OVERLAP, calibration
from course_lib.cost.flops import Recompute
from course_lib.cost.layout import Layout
from course_lib.cost.lines import machine_of
from course_lib.cost.memory import Memory, Precision, memory_per_gpu, worse_of
from course_lib.cost.peak import at_peak
from course_lib.cost.sizes import ModelSizes, StepLayout
from course_lib.cost.step_time import StepTime, step_time
from course_lib.planner.request import Request

Counts = NDArray[np.int64]
Flags = NDArray[np.bool_]

AXES = ("tp", "cp", "pp", "v", "dp_replicate", "dp_shard", "ep", "zero", "mbs", "recompute")
"""Columns of a table of layouts; recompute is 0 nothing, 1 attention's core, 2 all."""
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
ALL = 0  # in the grid: shard over all data-parallel ranks
RESERVED_BYTES = 2e9  # CUDA context, communication buffers, fragments


@dataclass(frozen=True)
class Plan:
    """Hold what was found: layouts that run, best first, with time, memory, and why others were left out.

    table: [layouts, AXES]. left_out: rule -> layouts it removed, in the order of the rules.
    """

    request: Request
    table: Counts
    time: StepTime
    memory: Memory
    left_out: dict[str, int]
    shortest_bytes: float
    """Memory of the layout that needs least, of those that only memory left out; infinity if none."""

    @property
    def step_s(self) -> NDArray[np.float64]:
        """Seconds of a step, best first."""
        return self.time.total_s

    @property
    def tokens_per_s_per_gpu(self) -> NDArray[np.float64]:
        """Tokens a second and GPU, best first."""
        return self.request.tokens_per_step / self.step_s / self.request.num_gpus


def plan(request: Request) -> Plan:
    """Find all layouts that fit and rank them by tokens per second.

    Raises: ValueError if none fits, saying by how much and what would.
    """
    table, left_out = _candidates(request)
    if not len(table):
        raise ValueError(_none_can_run(request, left_out))
    found = price(request, table)
    fits = np.asarray(found.memory.total) + RESERVED_BYTES <= request.cluster.accelerator.usable_memory_bytes
    left_out["memory: does not fit"] = int((~fits).sum())
    least = float(np.min(found.memory.total))
    if not fits.any():
        raise ValueError(_nothing_fits(request, least))
    order = np.flatnonzero(fits)[np.argsort(found.step_s[fits], kind="stable")]
    time, memory = StepTime(**_picked(found.time, order)), Memory(**_picked(found.memory, order))
    return Plan(request, table[order], time, memory, left_out, least)


def price(request: Request, table: Counts) -> Plan:
    """Price given layouts, in the given order, whether they fit or not."""
    columns = dict(zip(AXES, table.T.astype(np.float64), strict=True))
    layout = _step_layout(request, columns)
    memory = _memory(request, columns)
    used = np.asarray(memory.total, dtype=np.float64)
    machine = machine_of(request.cluster)
    time = step_time(sizes_of(request.config), layout, machine, calibration(), used)
    return Plan(request, table, time, memory, {}, float(used.min()) if len(used) else np.inf)


def sizes_of(config: ModelConfig) -> ModelSizes:
    """Return a model's sizes as arrays of one."""
    one = np.atleast_1d
    moe = config.num_experts > 0  # Simplification: all layers of a mixture are priced as MoE layers
    return ModelSizes(
        model_dim=one(float(config.model_dim)),
        ffn_dim=one(float(config.expert_ffn_dim if moe else config.ffn_dim)),
        num_heads=one(float(config.num_heads)),
        num_kv_heads=one(float(config.num_kv_heads)),
        head_dim=one(float(config.head_dim)),
        num_layers=one(float(config.num_layers)),
        vocab_size=one(float(config.vocab_size)),
        gated=one(float(config.gated_ffn)),
        tied=one(config.tied_embeddings),
        num_experts=one(float(max(1, config.num_experts + config.num_shared_experts))),
        experts_per_token=one(float(max(1, config.experts_per_token + config.num_shared_experts))),
    )


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


def _candidates(request: Request) -> tuple[Counts, dict[str, int]]:
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
        [0, 1, 2],
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
    exists &= recompute != 1  # fused attention stores no scores: nothing to select
    kept = [a[exists] for a in (tp, cp, pp, v, shard, ep, zero, mbs, recompute)]
    tp, cp, pp, v, shard, ep, zero, mbs, recompute = kept
    replicate = gpus // (tp * cp * pp * shard)
    return np.stack([tp, cp, pp, v, replicate, shard, ep, zero, mbs, recompute], axis=1)


def splits(layers: int, pp: Counts, v: Counts) -> Flags:
    """Return which pipelines the layers split over as Megatron takes them.

    Equal chunks; equal if embedding and head count as a layer each; or, without virtual stages, equal middle
    stages of ceil(L / pp) layers and a first and last one that have less, at least one each.
    """
    chunks = pp * v
    least = (pp - 2) * -(-layers // pp) + 2
    holds: Flags = (layers % chunks == 0) | ((layers + 2) % chunks == 0)
    holds |= (v == 1) & (pp > 2) & (least <= layers)
    return holds


def stage_layers(layers: int, pp: int, v: int) -> tuple[int, int, int]:
    """Return the layers of the first stage, of each in between and of the last, virtual ones together."""
    if layers % (pp * v) == 0:
        return (layers // pp,) * 3
    middle = -(-layers // pp)
    ends = layers - (pp - 2) * middle
    return ends - ends // 2, middle, ends // 2


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


def _step_layout(request: Request, c: dict[str, NDArray[np.float64]]) -> StepLayout:
    dp = c["dp_replicate"] * c["dp_shard"]
    count = len(dp)
    return StepLayout(
        seq_len=np.full(count, float(request.seq_len)),
        tp=c["tp"],
        cp=c["cp"],
        pp=c["pp"],
        virtual_stages=c["v"],
        dp=dp,
        shard=c["dp_shard"],
        ep=c["ep"],
        zero=c["zero"].astype(np.int64),
        microbatch_size=c["mbs"],
        num_microbatches=request.num_sequences / (dp * c["mbs"]),
        recompute=c["recompute"].astype(np.int64),
        sequence_parallel=c["tp"] > 1,
        fused_attention=np.full(count, True),
        overlap_reduce=np.ones(count),
        overlap_gather=((c["zero"] == 1) | (c["zero"] == 2)).astype(np.float64),
        grad_bytes=np.full(count, request.grad_bytes),
        stack=np.full(count, STACKS.index(_stack(request))),
        tp_overlap=np.full(count, TP_OVERLAP.index(request.tp_overlap)),
        zero_bubble=request.schedule == "zb-h1",
        eight_bit=request.precision == "fp8",
    )


def _stack(request: Request) -> str:
    """Return the stack measured on the accelerator: older Megatron on A100, newer on all others."""
    return "megatron" if request.cluster.accelerator.name.startswith("A100") else "megatron-core"


def _memory(request: Request, c: dict[str, NDArray[np.float64]]) -> Memory:
    """Price each kind of recomputation for its own rows."""
    out: dict[str, NDArray[np.float64]] = {}
    for kind, name in enumerate(RECOMPUTE):
        rows = c["recompute"] == kind
        if not rows.any():
            continue
        one = {axis: values[rows] for axis, values in c.items()}
        dp = one["dp_replicate"] * one["dp_shard"]
        layout = Layout(
            tp=one["tp"],
            pp=one["pp"],
            cp=one["cp"],
            dp=one["dp_shard"],
            ep=one["ep"],
            zero_stage=one["zero"],
            microbatch_size=one["mbs"],
            num_microbatches=np.maximum(1, request.num_sequences // (dp * one["mbs"])),
            virtual_stages=one["v"],
        )
        found = worse_of(
            *(_stage_memory(request, layout, stage, name) for stage in (0 * one["pp"], one["pp"] - 1))
        )
        for category, value in found.by_category().items():
            out.setdefault(category, np.zeros(len(rows)))[rows] = value
    return Memory(**out)


def _stage_memory(
    request: Request, layout: Layout, stage: NDArray[np.float64], recompute: Recompute
) -> Memory:
    config, seq_len = request.config, request.seq_len
    precision = Precision(grad_bytes=request.grad_bytes)
    kept = memory_per_gpu(
        config, layout, seq_len=seq_len, stage=stage, recompute=recompute, precision=precision
    )
    return at_peak(config, layout, seq_len=seq_len, stage=stage, resident=kept)


def _picked(found: Any, order: Counts) -> dict[str, NDArray[np.float64]]:
    """Return the fields of terms or memory in another order."""
    return {name: np.asarray(value, dtype=np.float64)[order] for name, value in vars(found).items()}


def _none_can_run(request: Request, left_out: dict[str, int]) -> str:
    rules = "; ".join(f"{name} {n:,}" for name, n in left_out.items() if n)
    return (
        f"some layout must run on {request.num_gpus:,} GPUs with {request.num_sequences:,} sequences per "
        f"step; got none ({rules or 'no axis divides them'}). {batch_that_divides(request)}"
    )


def batch_that_divides(request: Request) -> str:
    """Name the batches next to the asked one that all GPUs share equally, where it is not such a one."""
    below = request.num_sequences // request.num_gpus * request.num_gpus
    near = [count for count in (below, below + request.num_gpus) if 0 < count != request.num_sequences]
    said = " or ".join(f"--tokens {count * request.seq_len} ({count:,} sequences)" for count in near)
    return f"Use {said}, or change the GPUs." if near else "Change the GPUs, the batch or the sequence."


def _nothing_fits(request: Request, least: float) -> str:
    have = request.cluster.accelerator.usable_memory_bytes - RESERVED_BYTES
    enough = _gpus_that_fit(request, least / have)
    use = f"Use {enough:,} GPUs" if enough else "Use several times as many GPUs"
    halved = "" if request.grads == "bf16" else _with_bf16_gradients(request, have)
    return (
        f"some layout must fit into {have / 1e9:.0f} GB of each GPU; the one that needs least takes "
        f"{least / 1e9:.1f} GB, {(least - have) / 1e9:.1f} GB too much. {use} or more, {halved}"
        "a shorter sequence, or GPUs with more memory."
    )


def _with_bf16_gradients(request: Request, have: float) -> str:
    """Say how far gradients in bf16 go on the same GPUs."""
    table, _ = _candidates(request)
    columns = dict(zip(AXES, table.T.astype(np.float64), strict=True))
    least = float(np.min(_memory(replace(request, grads="bf16"), columns).total))
    return f"--grads bf16 ({least / 1e9:.1f} GB: {'fits' if least <= have else 'still too much'}), "


def _gpus_that_fit(request: Request, times: float) -> int:
    """Return a number of GPUs, `times` as many or more, on which a layout fits; 0 if none was found."""
    servers = int(np.ceil(request.num_gpus * times / request.cluster.server_size))
    powers = [2**k for k in range(15) if servers < 2**k <= 16 * servers]
    for count in sorted({servers, servers + 1, servers + 2, *powers}):
        more = _on(request, count * request.cluster.server_size)
        table, _ = _candidates(more)
        columns = dict(zip(AXES, table.T.astype(np.float64), strict=True))
        need = np.asarray(_memory(more, columns).total) if len(table) else np.array([np.inf])
        if need.min() + RESERVED_BYTES <= request.cluster.accelerator.usable_memory_bytes:
            return more.num_gpus
    return 0


def _on(request: Request, num_gpus: int) -> Request:
    """Return the request on so many GPUs, of a cluster as large as they need."""
    *near, last = request.cluster.spans
    step = near[-1].devices if near else 1
    last = replace(last, devices=max(last.devices, -(-num_gpus // step) * step))
    return replace(request, num_gpus=num_gpus, cluster=replace(request.cluster, spans=(*near, last)))
