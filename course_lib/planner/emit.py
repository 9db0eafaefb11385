"""Write a layout as settings to take away: torchtitan's TOML, Megatron-Core's flags."""

from __future__ import annotations

from typing import Any

from course_lib.planner.request import Request, choice_of
from course_lib.planner.search import stage_layers

FORMATS = ("torchtitan", "megatron")


def emit(layout: dict[str, Any], request: Request, form: str) -> str:
    """Return a layout as settings of torchtitan (TOML) or Megatron-Core (flags).

    Raises: ValueError for another form.
    """
    choice_of("--emit", form, FORMATS)
    written = (_torchtitan if form == "torchtitan" else _megatron)(layout, request)
    of = f"# {request.name} on {request.num_gpus:,} GPUs: layout and batch; add the model's own sizes"
    return f"{of}\n{written}"


def _torchtitan(layout: dict[str, Any], request: Request) -> str:
    replicate, shard = layout["dp_replicate"], layout["dp_shard"]
    lines = []
    if layout["zero"] == 0 and replicate > 1 and layout["tp"] * layout["cp"] * layout["pp"] > 1:
        replicate, shard = 1, replicate * shard
        lines.append(
            "# torchtitan replicates data-parallel state only where no other axis is used: sharded here"
        )
    if request.grads == "bf16":
        lines.append("# torchtitan reduces gradients in float32 only: this layout needs more memory there")
    lines += [
        "[training]",
        f"local_batch_size = {request.num_sequences // (replicate * shard)}",
        f"global_batch_size = {request.num_sequences}",
        f"seq_len = {request.seq_len}",
        "[parallelism]",
        f"data_parallel_replicate_degree = {replicate}",
        f"data_parallel_shard_degree = {shard}",
        f'fsdp_reshard_after_forward = "{"always" if layout["zero"] == 3 else "never"}"',
        f"tensor_parallel_degree = {layout['tp']}",
        f"context_parallel_degree = {layout['cp']}",
        *_torchtitan_pipeline(layout, request),
    ]
    if layout["ep"] > 1:
        lines.append(f"expert_parallel_degree = {layout['ep']}")
    if request.precision == "fp8":
        lines += ["[model]", 'converters = ["quantize.linear.float8"]  # before August 2025: ["float8"]']
    return "\n".join([*lines, "[activation_checkpoint]", f'mode = "{layout["recompute"]}"'])


def _torchtitan_pipeline(layout: dict[str, Any], request: Request) -> list[str]:
    lines = [f"pipeline_parallel_degree = {layout['pp']}"]
    if layout["pp"] == 1:
        return lines
    schedule = "Interleaved1F1B" if layout["v"] > 1 else "1F1B"
    schedule = "ZBH1" if request.schedule == "zb-h1" else schedule
    chunks, less = layout["pp"] * layout["v"], int(_ends_count(layout, request))
    return [
        *lines,
        f'pipeline_parallel_schedule = "{schedule}"',
        f"pipeline_parallel_microbatch_size = {layout['mbs']}",
        f"pipeline_parallel_layers_per_stage = {-(-(request.config.num_layers + 2 * less) // chunks)}",
        f"pipeline_parallel_first_stage_less_layers = {less}",
        f"pipeline_parallel_last_stage_less_layers = {less}",
    ]


def _ends_count(layout: dict[str, Any], request: Request) -> bool:
    """Whether chunks are equal only if embedding and head count as a layer each."""
    chunks, layers = layout["pp"] * layout["v"], request.config.num_layers
    return bool(layers % chunks != 0 and (layers + 2) % chunks == 0)


def _is_even(layout: dict[str, Any], request: Request) -> bool:
    """Whether all stages are equal, ends counted as a layer each or not; else the ends have less."""
    return request.config.num_layers % (layout["pp"] * layout["v"]) == 0 or _ends_count(layout, request)


def _megatron(layout: dict[str, Any], request: Request) -> str:
    notes: list[str] = []
    flags = [
        f"--tensor-model-parallel-size {layout['tp']}",
        f"--context-parallel-size {layout['cp']}",
        f"--pipeline-model-parallel-size {layout['pp']}",
        f"--micro-batch-size {layout['mbs']}",
        f"--global-batch-size {request.num_sequences}",
        f"--seq-length {request.seq_len}",
        "--bf16",
    ]
    if request.schedule == "zb-h1":
        notes.append("# Megatron-Core has no ZB-H1: github.com/sail-sg/zero-bubble-pipeline-parallelism")
    if request.precision == "fp8":
        flags.append("--fp8-format hybrid")
    if request.grads == "bf16":
        flags.append("--grad-reduce-in-bf16")
    if layout["tp"] > 1:
        flags.append("--sequence-parallel")
        flags.append(f"--make-vocab-size-divisible-by {max(1, 128 // layout['tp'])}")  # times tp
    if layout["tp"] > 1 and request.tp_overlap != "none":
        flags.append("--tp-comm-overlap")
        notes.append("# --tp-comm-overlap needs Transformer Engine and CUDA_DEVICE_MAX_CONNECTIONS=1")
    if layout["v"] > 1 and not _is_even(layout, request):
        raise ValueError(
            f"Megatron must have equal chunks; got {request.config.num_layers} layers on pp={layout['pp']}, "
            f"v={layout['v']}. Choose v so that pp x v divides them, or them and both ends."
        )
    if layout["v"] > 1:
        per_chunk = -(-request.config.num_layers // (layout["pp"] * layout["v"]))
        flags.append(f"--num-layers-per-virtual-pipeline-stage {per_chunk}")
    if _ends_count(layout, request):
        flags.append("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split")
    if not _is_even(layout, request):
        first, _, last = stage_layers(request.config.num_layers, layout["pp"], 1)
        flags.append(f"--decoder-first-pipeline-num-layers {first}")
        flags.append(f"--decoder-last-pipeline-num-layers {last}")
    if layout["zero"] == 0:
        flags.append("--overlap-grad-reduce")
    if layout["zero"] > 0:
        flags.append("--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather")
    if layout["zero"] >= 2:
        shared = "optim_grads" if layout["zero"] == 2 else "optim_grads_params"
        flags.append(f"--use-megatron-fsdp --data-parallel-sharding-strategy {shared}")
        flags.append("--no-gradient-accumulation-fusion --ckpt-format fsdp_dtensor")
    if layout["zero"] >= 1 and layout["dp_replicate"] > 1:
        flags.append(f"--num-distributed-optimizer-instances {layout['dp_replicate']}")
    if layout["ep"] > 1:
        flags.append(f"--expert-model-parallel-size {layout['ep']}")
    if layout["recompute"] == "full":
        flags.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    return "\n".join([*notes, " \\\n".join(flags)])
