# %% [markdown]
# # Lab 05: FSDP and HSDP
#

# %%
import math

import torch
import torch.distributed as dist

from course_lib.cost.collectives import collective_time_s


# %% exercise="owner_fsdp_forward"
def owner_fsdp_forward(units, x):
    """Return the output of the chain of units for this rank's samples x.

    units: the rank `unit.owner` keeps all parameters of the unit in `unit.shard` [unit.numel]; the others'
        `unit.shard` is empty. `unit.full` is None on all ranks, and must be so again at the end.
    """
    ### BEGIN SOLUTION
    for unit in units:
        is_owner = dist.get_rank() == unit.owner
        unit.full = unit.shard if is_owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
        unit.full = None
    return x
    ### END SOLUTION


# %% exercise="owner_fsdp_backward"
def owner_fsdp_backward(units, grad, lr):
    """Go back through the units, and take one step of SGD with the mean gradient over the ranks, on owners only.

    units: after a forward: `unit.full` is None on all ranks, and must be so again at the end.
    grad: gradient of this rank's loss with respect to the output of the chain.
    lr: step size.
    """
    ### BEGIN SOLUTION
    for unit in reversed(units):
        is_owner = dist.get_rank() == unit.owner
        unit.full = unit.shard if is_owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:  # None: frozen
            dist.reduce(full_grad, dst=unit.owner)
            if is_owner:
                unit.shard -= lr * full_grad / dist.get_world_size()
    ### END SOLUTION


# %% exercise="fsdp_forward"
def fsdp_forward(units, x):
    """Return the output of the chain of units for this rank's samples x; leave the last unit whole.

    units: every rank keeps `unit.shard`, the rank-th of n equal parts of the padded parameters; `unit.full` is
        None.
    """
    ### BEGIN SOLUTION
    for unit in units:
        unit.full = unit.shard.new_empty(dist.get_world_size() * len(unit.shard))
        dist.all_gather_into_tensor(unit.full, unit.shard)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x
    ### END SOLUTION


# %% exercise="fsdp_backward"
def fsdp_backward(units, grad):
    """Leave this rank's shard of the mean gradient in `unit.grad` of every unit that trains.

    units: after `fsdp_forward`: the last one is whole. At the end none is.
    grad: gradient of this rank's loss with respect to the output of the chain.
    """
    ### BEGIN SOLUTION
    for unit in reversed(units):
        if unit.full is None:
            unit.full = unit.shard.new_empty(dist.get_world_size() * len(unit.shard))
            dist.all_gather_into_tensor(unit.full, unit.shard)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:  # None: frozen
            unit.grad = torch.empty_like(unit.shard)
            dist.reduce_scatter_tensor(unit.grad, full_grad)
            unit.grad /= dist.get_world_size()
    ### END SOLUTION


# %% exercise="prefetch"
def prefetched_step(units, x, loss_grad, depth):
    """Run forward and backward with gathers `depth` units ahead and reductions one unit behind.

    units: every rank keeps `unit.shard`; `unit.full` is None, and must be so again at the end.
    loss_grad: loss_grad(output) -> gradient of this rank's loss with respect to the output.
    depth: how many units ahead are gathered; 0: none.

    Returns: the output. Leaves this rank's shard of the mean gradient in `unit.grad` of units that train.
    """
    ### BEGIN SOLUTION
    n, gathers = dist.get_world_size(), {}

    def make_ready(order, i):
        """Launch the gathers of unit i and the next `depth`, wait for unit i's."""
        for unit in order[i : i + 1 + depth]:
            if unit.full is None:
                unit.full = unit.shard.new_empty(n * len(unit.shard))
                gathers[unit] = dist.all_gather_into_tensor(unit.full, unit.shard, async_op=True)
        if order[i] in gathers:
            gathers.pop(order[i]).wait()

    for i, unit in enumerate(units):
        make_ready(units, i)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    grad, reduction = loss_grad(x), None
    backwards = units[::-1]
    for i, unit in enumerate(backwards):
        make_ready(backwards, i)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if reduction is not None:
            reduction[0].wait()
        reduction = None
        if full_grad is not None:
            unit.grad = torch.empty_like(unit.shard)
            work = dist.reduce_scatter_tensor(unit.grad, full_grad, async_op=True)
            reduction = (work, full_grad)  # what travels must stay
    if reduction is not None:
        reduction[0].wait()
    for unit in units:
        if unit.grad is not None:
            unit.grad /= n
    return x
    ### END SOLUTION


# %% exercise="hsdp_reduce"
def hsdp_reduce(grad, mesh):
    """Return this rank's shard of the mean gradient over all ranks, shape (ceil(S / dp_shard),).

    grad: this rank's whole gradient of a unit, shape (S,).
    mesh: mesh.size(axis), mesh.rank(axis) and mesh.group(axis) for the axes "dp_replicate" and "dp_shard".
    """
    ### BEGIN SOLUTION
    k = mesh.size("dp_shard")
    full = torch.cat([grad, grad.new_zeros(-len(grad) % k)])
    shard = full.new_empty(len(full) // k)
    dist.reduce_scatter_tensor(shard, full, group=mesh.group("dp_shard"))
    dist.all_reduce(shard, group=mesh.group("dp_replicate"))
    return shard / (k * mesh.size("dp_replicate"))
    ### END SOLUTION


# %% exercise="choose_mesh"
def choose_mesh(model, cluster, world_size):
    """Return (dp_replicate, dp_shard): the mesh that fits and communicates least.

    model: a dict with num_params (P), num_units (L, equal) and activation_bytes.
    cluster: a `course_lib.cost.cluster.Cluster`; cluster.accelerator.memory_bytes is the memory of a GPU.
    """
    ### BEGIN SOLUTION
    num_params, num_units = model["num_params"], model["num_units"]
    unit_bytes = 2 * num_params / num_units
    times_s = {}
    for k in [k for k in range(1, world_size + 1) if world_size % k == 0]:
        memory = 16 * num_params / k + 2 * unit_bytes + model["activation_bytes"]
        if memory <= cluster.accelerator.memory_bytes:
            shard, replicate = range(k), range(0, world_size, k)
            gather_s = collective_time_s(cluster, "all_gather", shard, unit_bytes)
            scatter_s = collective_time_s(cluster, "reduce_scatter", shard, unit_bytes)
            across_s = collective_time_s(cluster, "all_reduce", replicate, unit_bytes / k)
            times_s[k] = num_units * (2 * gather_s + scatter_s + across_s)
    best = min(times_s, key=times_s.get)
    return world_size // best, best
    ### END SOLUTION


# %% exercise="numbers_05"
def numbers_05() -> dict[str, float]:
    """Return fsdp_sent_bytes, over_ddp, hsdp_across_bytes, parameter_peak_bytes, min_gpus."""
    ### BEGIN SOLUTION
    small, large, huge, unit = 8_030_261_248, 70_553_706_496, 405_853_388_800, 3_187_703_808
    return {
        "fsdp_sent_bytes": 3 * 7 / 8 * 2 * small,
        "over_ddp": 3 / 2,
        "hsdp_across_bytes": 2 * 15 / 16 * 2 * large / 8,
        "parameter_peak_bytes": 2 * huge / 1024 + 2 * 2 * unit,
        "min_gpus": math.ceil(16 * huge / (80e9 - 4 * unit)),
    }
    ### END SOLUTION
