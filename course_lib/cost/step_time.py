"""Predict the time of a training step for many layouts at once, as a sum of named terms.

A micro-batch's block is matmuls by shape, attention, elementwise traffic and tensor-parallel collectives, or
the host's launches if they take longer. Blocks make stages, stages a pipeline with its bubble; what data
parallelism exposes, the optimizer and the step's fixed time come on top. Constants are measured
(`cost/constants`). Labs 07 and 12. Others: vTrain (arXiv:2312.12391) and Calculon (SC'23) price one layout
at a time; neither knows context parallelism, sharded weights or GQA.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from course_lib.cost.axis_collectives import Machine, all_reduce_time_s, gather_time_s, send_time_s
from course_lib.cost.constants import Array, Calibration
from course_lib.cost.kernels import Pass, attention_time_s, linear_time_s, smooth_max
from course_lib.cost.mixture import biases, dispatch_s, expert_matmuls, shared_matmuls, sorting
from course_lib.cost.sizes import ModelSizes, StepLayout

STALL_SERVERS = 8  # the largest number of servers on which stalls were measured and understood
MIXTURE_LAUNCHES = 2  # routing, sorting and dispatch launch as many kernels as the rest of a block; assumed
FULL = 2  # of `StepLayout.recompute`
PIPE_TILES = 4  # num_splits of a pipelined collective in Transformer Engine's userbuffers


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Give the seconds of a step and what they are made of; every field is an array over rows."""

    blocks_s: Array
    """Compute, launches and tensor-parallel collectives of all micro-batches' blocks."""
    recompute_s: Array
    """Forwards that backward runs again."""
    context_s: Array
    """Context-parallel communication that compute does not hide."""
    experts_s: Array
    """Sending tokens to their experts and back, as far as nothing hides it."""
    ends_s: Array
    """Embedding, output head and loss, averaged over stages."""
    bubble_s: Array
    """Waiting for the pipeline to fill and drain, and for uneven ends."""
    send_s: Array
    """Messages between stages that compute does not hide."""
    reduce_s: Array
    """Collectives over gradients and sharded weights that compute does not hide."""
    optimizer_s: Array
    """Optimizer, and the step's fixed time."""
    stall_s: Array
    """Stalls of one software stack between stages on different servers."""

    @property
    def total_s(self) -> Array:
        """Seconds of a step."""
        return sum((value for value in self.terms().values()), start=np.zeros(1))

    def terms(self) -> dict[str, Array]:
        """Return the terms by name, without the unit."""
        return {f.name.removesuffix("_s"): getattr(self, f.name) for f in fields(self)}


def step_time(
    model: ModelSizes,
    layout: StepLayout,
    machine: Machine,
    fitted: Calibration,
    used_bytes: Array | None = None,
) -> StepTime:
    """Predict a step.

    used_bytes: device memory of a rank by formula; with it, stalls of a nearly full memory are priced.
    Raises: nothing; rows that cannot exist must be left out before.
    """
    heaviest = block_time(model, layout, machine, fitted)
    block, again, context, routing = _average_block(heaviest, model, layout, machine, fitted)
    ends = _ends(model, layout, machine, fitted)
    per_stage = model.num_layers / layout.pp
    whole = block.forward + block.backward + again + context + routing
    average = per_stage * whole + (ends[0] + ends[1]) / layout.pp
    most = heaviest[0].forward + heaviest[0].backward + sum(heaviest[1:])
    busiest = _busiest_s(model, layout, np.where(layout.pp > 1, most, whole), ends)
    later = _linears(model, layout, machine, fitted).backward / 2  # weights' gradients
    idle = np.where(layout.zero_bubble, np.maximum(1 - 2 * per_stage * later / average, 0.0), 1.0)
    bubble = _pipeline_s(layout, busiest, average, idle) - layout.num_microbatches * average
    blocks = layout.num_microbatches * per_stage
    return StepTime(
        blocks_s=blocks * (block.forward + block.backward),
        recompute_s=blocks * again,
        context_s=blocks * context,
        experts_s=blocks * routing,
        ends_s=layout.num_microbatches * (ends[0] + ends[1]) / layout.pp,
        bubble_s=bubble,
        send_s=_send_s(model, layout, machine, fitted),
        reduce_s=_reduce_s(model, layout, machine, fitted, block, average),
        optimizer_s=_optimizer_s(model, layout, machine, fitted),
        stall_s=_stall_s(layout, machine, fitted, used_bytes),
    )


def params_per_rank(model: ModelSizes, layout: StepLayout) -> Array:
    """Return parameters of the largest stage's rank, before data parallelism shards them."""
    dense, ffn = _params(model, layout)
    return dense + ffn


def _params(model: ModelSizes, layout: StepLayout) -> tuple[Array, Array]:
    """Return what every rank of dp and cp holds a copy of, and networks or experts, which ep spreads."""
    tables = np.where((layout.pp > 1) | model.tied, 1.0, 2.0) * model.vocab_size * model.model_dim
    layers = model.num_layers / layout.pp
    share = model.dense_share
    ffn = share * model.without_experts().expert_params + (1 - share) * model.shared_params
    dense = layers * (model.attention_params + ffn) + tables
    return dense / layout.tp, (1 - share) * layers * _ffn_params(model, layout)


def _ffn_params(model: ModelSizes, layout: StepLayout) -> Array:
    """Return a block's parameters of feed-forward networks on a rank."""
    return model.num_experts / layout.ep * model.expert_params / layout.expert_tp


def _average_block(
    mixed: tuple[Pass, Array, Array, Array],
    model: ModelSizes,
    layout: StepLayout,
    machine: Machine,
    fitted: Calibration,
) -> tuple[Pass, Array, Array, Array]:
    """Return `block_time` of a mixture's layers and of its dense ones, which are in the first stage."""
    if not np.any(model.num_dense_layers):
        return mixed
    whole = replace(layout, ep=np.ones_like(layout.ep), expert_tp=layout.tp)
    plain = block_time(model.without_experts(), whole, machine, fitted)
    share = model.dense_share
    block = Pass(
        forward=mixed[0].forward + share * (plain[0].forward - mixed[0].forward),
        backward=mixed[0].backward + share * (plain[0].backward - mixed[0].backward),
    )
    again, context, routing = (
        one + share * (other - one) for one, other in zip(mixed[1:], plain[1:], strict=True)
    )
    return block, again, context, routing


def block_time(
    model: ModelSizes, layout: StepLayout, machine: Machine, fitted: Calibration
) -> tuple[Pass, Array, Array, Array]:
    """Return a block's pass, what backward recomputes, exposed communication of cp, and that of ep."""
    core = _attention(model, layout, machine, fitted)
    linears = _linears(model, layout, machine, fitted)
    moved = _elementwise(model, layout, machine, fitted)
    device = linears + core + moved + _tensor_parallel(model, layout, machine, fitted, linears)
    device = device + _accumulate(model, layout, machine)
    host = _host(model, layout, machine, fitted)
    block = Pass(
        forward=_with_host(model, device.forward, host.forward),
        backward=_with_host(model, device.backward, host.backward),
    )
    kv_heads = model.num_kv_heads / np.minimum(layout.tp, model.num_kv_heads)
    kv_bytes = 2 * 2 * layout.microbatch_size * layout.seq_len * kv_heads * model.head_dim
    gather = gather_time_s(layout.cp, layout.tp, kv_bytes, machine, fitted)
    exposed = np.where(layout.recompute == FULL, 4.0, 3.0) * (1 - fitted["context_hidden"]) * gather
    selective = np.where(layout.fused_attention, 0.0, core.forward)
    again = np.choose(layout.recompute, [np.zeros_like(block.forward), selective, block.forward])
    return block, again, exposed, _experts_s(model, layout, machine, fitted, block)


def _with_host(model: ModelSizes, device: Array, host: Array) -> Array:
    """Add what the host's launches take: the longer of both, but all in a mixture, where the host waits.

    It asks the GPU how many tokens each expert gets before it can launch what follows.
    """
    return np.where(model.num_experts > 1, device + host, smooth_max(device, host))


def _linears(model: ModelSizes, layout: StepLayout, machine: Machine, fitted: Calibration) -> Pass:
    tp, tokens, dim = layout.tp, layout.tokens, model.model_dim
    qkv = (model.num_heads + 2 * model.num_kv_heads) * model.head_dim / tp
    mixed = model.num_heads * model.head_dim / tp
    cast_bytes = fitted.at("cast_bytes", layout.stack)

    def linear(inner: Array, outer: Array) -> Pass:
        return linear_time_s(tokens, inner, outer, machine, fitted, layout.eight_bit, cast_bytes=cast_bytes)

    ffn = expert_matmuls(model, layout, machine, fitted) + shared_matmuls(model, layout, machine, fitted)
    return linear(dim, qkv) + linear(mixed, dim) + ffn


def _attention(model: ModelSizes, layout: StepLayout, machine: Machine, fitted: Calibration) -> Pass:
    newer = np.where(machine.generation > 0, fitted.at("attention_slowdown", layout.stack), 1.0)
    efficiency = fitted.at("attention_efficiency", layout.stack) / newer
    heads = layout.microbatch_size * model.num_heads / layout.tp
    return attention_time_s(
        layout.seq_len / layout.cp, layout.seq_len, heads, model.head_dim, layout.fused_attention, efficiency,
        machine, fitted,
    )  # fmt: skip


def _elementwise(model: ModelSizes, layout: StepLayout, machine: Machine, fitted: Calibration) -> Pass:
    """Norms, residuals, dropout on [tokens, D]; the activation function on [tokens, F]; 2 bytes each."""
    split = np.where(layout.sequence_parallel, layout.tp, 1.0)
    norms = fitted.at("norm_traffic", layout.stack) * model.model_dim / split
    routed = (model.experts_per_token * model.ffn_dim + model.shared_ffn_dim) / layout.tp
    hidden = (2 + model.gated) * routed * fitted.at("ffn_traffic", layout.stack)
    forward = 2 * layout.tokens * (norms + hidden) / machine.memory_bytes_per_s
    own = Pass(forward=forward, backward=fitted.at("backward_traffic", layout.stack) * forward)
    return own + sorting(model, layout, machine, fitted) + biases(model, layout, machine, fitted)


def _accumulate(model: ModelSizes, layout: StepLayout, machine: Machine) -> Pass:
    """Each micro-batch after the first adds gradients to what is there, a shard with ZeRO-2 and 3."""
    dense = (model.attention_params + model.shared_params) / layout.tp
    params = dense + _ffn_params(model, layout)
    not_first = 1 - 1 / layout.num_microbatches
    kept = np.where(layout.zero_stage >= 2, layout.dp_shard * layout.cp, 1.0)
    moved = 2 * layout.grad_bytes * not_first * params / kept
    return Pass(forward=np.zeros_like(moved), backward=moved / machine.memory_bytes_per_s)


def _tensor_parallel(
    model: ModelSizes, layout: StepLayout, machine: Machine, fitted: Calibration, linears: Pass
) -> Pass:
    """Two all_reduces a pass; with sequence parallelism reduce_scatter and all_gather.

    Overlapped, they run in tiles beside the matmul that needs or makes them: what cannot hide is the first
    tile, what a matmul does not outlast, and the share that both lose by sharing the GPU. `ring` has tp
    tiles, `pipe` four. In a mixture whose experts are split the feed-forward half carries every copy of a
    token, and nothing hides it; experts that are whole need no such collective.
    Reference: Calculon (SC'23), section 2; Megatron-Core's --tp-comm-overlap.

    Then backward gathers the inputs of both column-parallel layers once more; Megatron hides that behind
    the input's gradient (Korthikanti et al., arXiv:2205.05198, section 4.2.2), nanotron does not.
    """
    full_bytes, ones = 2 * layout.tokens * model.model_dim, np.ones_like(layout.tp)
    gather = gather_time_s(layout.tp, ones, full_bytes, machine, fitted)
    plain = 2 * all_reduce_time_s(layout.tp, ones, full_bytes, machine, fitted)
    again = 2 * fitted.at("regather_exposed", layout.stack) * gather
    split = layout.sequence_parallel
    tiles = np.choose(layout.tp_overlap, [ones, layout.tp, np.minimum(layout.tp, PIPE_TILES)])
    share = fitted["tp_hidden"] * (1 - 1 / tiles)
    mixture = model.num_experts > 1
    copies = np.where(layout.expert_tp > 1, model.experts_per_token, 0.0)
    plain = plain * np.where(mixture, (1 + copies) / 2, 1.0)
    gathers = np.where(mixture, 2 + 2 * copies, 4.0)
    forward, backward = (
        gathers * gather - np.where(mixture, 0.5, 1.0) * share * np.minimum(4 * gather, beside)
        for beside in (linears.forward, linears.backward)
    )
    return Pass(forward=np.where(split, forward, plain), backward=np.where(split, backward + again, plain))


def _experts_s(
    model: ModelSizes, layout: StepLayout, machine: Machine, fitted: Calibration, block: Pass
) -> Array:
    """Dispatch and combine, forward and backward: four all_to_alls a block, in 16 bits.

    Full recomputation runs the forward's two again. Overlapped, a forward runs beside the backward of another
    micro-batch and each hides the other's, but while the pipeline fills and drains: it has no pair there.
    Reference: DualPipe (arXiv:2412.19437, section 3.2.1); Megatron-Core's
    --overlap-moe-expert-parallel-comm.
    """
    # Simplification: sending takes some of the GPU's multiprocessors (DeepEP: 20 of 132); not priced.
    times = np.where(layout.recompute == FULL, 6.0, 4.0)
    whole = times * dispatch_s(model, layout, machine, fitted)
    p, v = layout.pp, layout.virtual_stages
    alone = np.minimum((2 * (p - 1) + (v - 1) * p + 1) / (v * layout.num_microbatches), 1)
    beside = np.maximum(whole - block.forward - block.backward, 0)
    return np.where(layout.ep_overlap, alone * whole + (1 - alone) * beside, whole)


def _host(model: ModelSizes, layout: StepLayout, machine: Machine, fitted: Calibration) -> Pass:
    """Time the host needs to launch a block's kernels; a pipeline across servers slows some stacks."""
    launch = fitted.at("host_s", layout.stack) * np.where(model.num_experts > 1, MIXTURE_LAUNCHES, 1)
    collectives = np.where(layout.tp > 1, 2 * fitted.at("host_collective_s", layout.stack), 0.0)
    spans = (layout.pp > 1) & (layout.world_size > machine.server_size)
    slow = fitted.at("host_pipeline_s", layout.stack)
    slow = np.where(spans, slow + layout.tp * fitted.at("host_pipeline_tp_s", layout.stack), 0.0)
    return Pass(
        forward=smooth_max(launch, slow / 3) + collectives,
        backward=smooth_max(1.2 * launch, slow * 2 / 3) + collectives,
    )


def _ends(
    model: ModelSizes, layout: StepLayout, machine: Machine, fitted: Calibration
) -> tuple[Array, Array]:
    """Return seconds of the embedding and of the head with its loss, forward and backward."""
    tokens, vocab = layout.tokens, model.vocab_size / layout.tp
    head = linear_time_s(tokens, model.model_dim, vocab, machine, fitted)
    logits = fitted["logit_bytes"] * tokens * vocab / machine.memory_bytes_per_s
    embedding = 2 * fitted["embedding_traffic"] * tokens * model.model_dim / machine.memory_bytes_per_s
    return embedding, head.forward + head.backward + logits


def _busiest_s(model: ModelSizes, layout: StepLayout, block: Array, ends: tuple[Array, Array]) -> Array:
    """Return the seconds of the stage that works most; a stage with an end has fewer blocks where it can."""
    least, most = np.floor(model.num_layers / layout.pp), np.ceil(model.num_layers / layout.pp)
    with_end = least * block + np.maximum(*ends)
    return np.where(layout.pp > 1, np.maximum(most * block, with_end), most * block + ends[0] + ends[1])


def _pipeline_s(layout: StepLayout, busiest: Array, average: Array, idle: Array) -> Array:
    """Time the pipeline: the busiest stage works without pause, the others only while it fills and drains.

    Formula: m busiest + (p average - busiest) / v, which is (m + (p-1)/v) t for equal stages. ZB-H1 leaves
    the part (F + B - W) / (F + B + W) of the bubble idle: F forward, B and W gradients of inputs and weights.
    Reference: Narayanan et al. (arXiv:2104.04473), section 2.2; Qi et al. (arXiv:2401.10241), table 2.
    """
    fill = idle * (layout.pp * average - busiest) / layout.virtual_stages
    alone = layout.num_microbatches * average
    return np.where(layout.pp > 1, layout.num_microbatches * busiest + fill, alone)


def _send_s(model: ModelSizes, layout: StepLayout, machine: Machine, fitted: Calibration) -> Array:
    """Each micro-batch enters and leaves each virtual stage once forward and once backward."""
    size_bytes = 2 * layout.tokens * model.model_dim / layout.tp
    stride = layout.tp * layout.cp * layout.dp
    messages = 2 * layout.virtual_stages * layout.num_microbatches + 2 * (layout.pp - 1)
    one = fitted["pipeline_exposed"] * send_time_s(stride, size_bytes, machine, fitted)
    return np.where(layout.pp > 1, messages * (one + fitted["pipeline_latency_s"]), 0.0)


def _reduce_s(
    model: ModelSizes,
    layout: StepLayout,
    machine: Machine,
    fitted: Calibration,
    block: Pass,
    stage: Array,
) -> Array:
    """Gradients once per step; a micro-batch: sharded gradients (ZeRO-2) once, sharded weights (3) twice.

    Ranks of cp hold the same weights as those of dp, and take part in all of it.
    """
    params, stride = params_per_rank(model, layout), layout.tp
    grad_bytes, weight_bytes = layout.grad_bytes * params, 2 * params
    ranks, shard, replicas = layout.dp * layout.cp, layout.dp_shard * layout.cp, layout.dp_replicate
    reduced = gather_time_s(ranks, stride, grad_bytes, machine, fitted)
    gathered = gather_time_s(ranks, stride, weight_bytes, machine, fitted)
    whole = all_reduce_time_s(ranks, stride, grad_bytes, machine, fitted)
    count = model.num_layers / layout.pp
    share = count * fitted.at("reduce_hidden", layout.stack)
    backward = layout.overlap_reduce * share * block.backward
    forward = layout.overlap_gather * share * block.forward
    scattered = _beyond(reduced, backward, count)
    later = np.where(layout.zero_stage == 2, gathered, _beyond(gathered, forward, count))
    once = np.where(layout.zero_stage == 2, layout.num_microbatches, 1.0) * scattered + later
    once = np.where(layout.zero_stage == 0, _beyond(whole, backward, count), once)
    across = all_reduce_time_s(replicas, stride * shard, grad_bytes / shard, machine, fitted)
    each = 2 * gather_time_s(shard, stride, weight_bytes, machine, fitted)
    each = each + gather_time_s(shard, stride, grad_bytes, machine, fitted)
    moved = (2 * weight_bytes + grad_bytes) / machine.inside_bytes_per_s
    late = np.maximum(each - fitted["gather_hidden"] * stage, 0) + fitted["gather_interference"] * moved
    sharded = layout.num_microbatches * late + _beyond(across, backward, count)
    return np.where(layout.zero_stage == 3, sharded, once)


def _beyond(seconds: Array, compute: Array, count: Array) -> Array:
    """Return what `compute` does not hide of a collective sent in `count` buckets, a block each.

    A bucket hides only under blocks still to come: the last one of backward has none, nor the first one of
    forward. Reference: Calculon (SC'23), section 2.
    """
    alone = 1 / np.maximum(count, 1)
    exposed: Array = alone * seconds + (1 - alone) * np.maximum(seconds - compute, 0)
    return exposed


def _optimizer_s(model: ModelSizes, layout: StepLayout, machine: Machine, fitted: Calibration) -> Array:
    dense, ffn = _params(model, layout)
    ranks = layout.dp_shard * layout.cp
    copies = np.maximum(ranks * layout.tp / (layout.ep * layout.expert_tp), 1)
    own = np.where(layout.zero_stage >= 1, dense / ranks + ffn / copies, dense + ffn)
    moved = own * fitted["optimizer_bytes"] / machine.memory_bytes_per_s
    return np.where(layout.offload, own * fitted["host_adam_s"], moved) + fitted.at("step_s", layout.stack)


def _stall_s(layout: StepLayout, machine: Machine, fitted: Calibration, used_bytes: Array | None) -> Array:
    """Give half a second and more a micro-batch and neighbouring stage, as one stack was seen to lose.

    It happens when memory is nearly full, and without ZeRO where every message between stages leaves the
    server; never with one data-parallel rank. The cause is not known: the term is a measurement, made on
    2 to 8 servers; on 16 and 32 other layouts stalled, so that it says nothing there.
    """
    if used_bytes is None:
        return np.zeros_like(layout.tokens)
    crossing = layout.tp * layout.cp * layout.dp >= machine.server_size
    servers = layout.world_size / machine.server_size
    spans = (layout.pp > 1) & (layout.dp > 1) & (servers > 1) & (servers <= STALL_SERVERS)
    full = used_bytes * fitted["memory_slack"] / machine.memory_bytes
    share = 1 / (1 + np.exp(-(full - 0.9) / 0.02))
    share = np.maximum(share, np.where((layout.zero_stage == 0) & crossing, fitted["unsharded_stalls"], 0.0))
    stall = fitted.at("full_memory_s", layout.stack) * np.minimum(layout.pp - 1, 2) * share
    return np.where(spans, layout.num_microbatches * stall, 0.0)
