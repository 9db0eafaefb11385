# %% [markdown]
# # Lab 13: frameworks and operations

# %% exercise="to_fsdp2"
def to_fsdp2(model, mesh):
    """Shard a model in place with torch's FSDP2, each block a unit, and return it.

    model: its `blocks` are the units; the rest belongs to the model itself.
    mesh: a DeviceMesh of one axis (dp_shard) or of two (dp_replicate, dp_shard).
    """
    ### BEGIN SOLUTION
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=True)
    return fully_shard(model, mesh=mesh)
    ### END SOLUTION


# %% exercise="to_dtensor_tp"
def to_dtensor_tp(model, mesh):
    """Cut the blocks of a model in place over a DeviceMesh of one axis, and return the model.

    model: each of its `blocks` has `gate_proj` and `up_proj` (dim to hidden) and `down_proj` (hidden to dim).
    """
    ### BEGIN SOLUTION
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model
    ### END SOLUTION


# %% exercise="deepspeed_config"
def deepspeed_config(*, stage, offload, batch_size, microbatch_size, world_size):
    """Return DeepSpeed's configuration for bf16, a dict; {} if no number of micro-batches makes the batch.

    stage: of ZeRO, 0 to 3.
    offload: "none", "optimizer", or "all" (the parameters too); a stage offloads what it shards.
    """
    ### BEGIN SOLUTION
    steps, rest = divmod(batch_size, microbatch_size * world_size)
    if rest:
        return {}
    zero = {"stage": stage}
    if stage > 0 and offload != "none":
        zero["offload_optimizer"] = {"device": "cpu"}
    if stage == 3 and offload == "all":
        zero["offload_param"] = {"device": "cpu"}
    return {
        "train_batch_size": batch_size,
        "train_micro_batch_size_per_gpu": microbatch_size,
        "gradient_accumulation_steps": steps,
        "zero_optimization": zero,
        "bf16": {"enabled": True},
    }
    ### END SOLUTION


# %% exercise="fp8_linear"
def fp8_linear(x, weight, history, format):
    """Return x @ weight.T by way of 8 bits, and the history with this x's amax.

    x: [rows, in], float64. weight: [out, in].
    history: [steps], the largest |x| of the last steps, oldest first; it alone says how x is scaled.
    format: "float8_e4m3fn" or "float8_e5m2".
    """
    ### BEGIN SOLUTION
    dtype = getattr(torch, format)
    largest = torch.finfo(dtype).max

    def quantize(values, amax):
        scale = largest / amax if amax > 0 else 1.0
        return (values * scale).clamp(-largest, largest).to(dtype).to(values.dtype), scale

    x8, x_scale = quantize(x, history.max().item())
    w8, w_scale = quantize(weight, weight.abs().max().item())
    return x8 @ w8.T / (x_scale * w_scale), torch.cat([history[1:], x.abs().max().reshape(1)])
    ### END SOLUTION


# %% exercise="boxes_of"
def boxes_of(shape, start, stop):
    """Return the boxes that the flat places from start to stop (not included) cover: [(offsets, sizes), ...].

    shape: list of int, of a row-major tensor.
    """
    ### BEGIN SOLUTION
    if start >= stop:
        return []
    if not shape:
        return [([], [])]
    inner = math.prod(shape[1:])

    def within(row, first, last):
        boxes = boxes_of(shape[1:], first, last)
        return [([row, *offsets], [1, *sizes]) for offsets, sizes in boxes]

    first, last = -(-start // inner), stop // inner
    if first > last:
        return within(last, start - last * inner, stop - last * inner)
    head = within(first - 1, start - (first - 1) * inner, inner) if start < first * inner else []
    whole = [([first] + [0] * (len(shape) - 1), [last - first, *shape[1:]])] if last > first else []
    return head + whole + within(last, 0, stop - last * inner)
    ### END SOLUTION


# %% exercise="save_and_publish"
def save_and_publish(folder, step, shard, keep):
    """Save this rank's shard beside the others' and return whether the save was published.

    folder: write(directory, shard) -> bool, rename(old, new), remove(directory), names() -> sorted list.
    step: the save is published as f"step-{step:08d}".
    keep: how many saves stay.
    """
    ### BEGIN SOLUTION
    begun, name = f".step-{step:08d}", f"step-{step:08d}"
    wrote = torch.tensor(int(folder.write(begun, shard)))
    dist.all_reduce(wrote, op=dist.ReduceOp.MIN)
    if dist.get_rank() == 0:
        if wrote:
            folder.rename(begun, name)
            for old in [n for n in folder.names() if n.startswith("step-")][:-keep]:
                folder.remove(old)
        else:
            folder.remove(begun)
    dist.barrier()
    return bool(wrote)
    ### END SOLUTION


# %% exercise="checkpoint_interval"
def checkpoint_interval(mtbf_per_gpu_s, save_s, num_gpus):
    """Return the seconds of work between two saves.

    mtbf_per_gpu_s: mean time between failures of one GPU; any of them stops the job.
    save_s: seconds that a save takes.
    """
    ### BEGIN SOLUTION
    return math.sqrt(2 * save_s * mtbf_per_gpu_s / num_gpus)
    ### END SOLUTION


# %% exercise="numbers_13"
def numbers_13() -> dict[str, float]:
    """Return zero2_bytes, fp8_error, save_bytes, hours_between_failures, goodput."""
    ### BEGIN SOLUTION
    mtbf = 54 * 86_400 / 419
    interval = math.sqrt(2 * 60 * mtbf)
    return {
        "zero2_bytes": 3 * 2 * 7e9,
        "fp8_error": 2**-4,
        "save_bytes": 14 * 70e9 / 64,
        "hours_between_failures": mtbf * 16_384 / 2_048 / 3600,
        "goodput": 1 - 60 / interval - (interval / 2 + 600) / mtbf,
    }
    ### END SOLUTION


# %% exercise="agree_to_stop"
def agree_to_stop(told, group):
    """Return True on every rank of the group if any of them was told to stop.

    told: 0-dim int64, 1 if a signal reached this rank.
    """
    ### BEGIN SOLUTION
    stop = told.clone()
    dist.all_reduce(stop, op=dist.ReduceOp.MAX, group=group)
    return bool(stop)
    ### END SOLUTION
