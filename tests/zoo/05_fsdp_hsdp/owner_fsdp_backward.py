# Answers to owner_fsdp_backward: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: each wrong loop differs in when it fetches, reduces, updates or frees.

# %% setup
import torch
import torch.distributed as dist


def fetch(unit):
    unit.full = unit.shard.clone() if dist.get_rank() == unit.owner else unit.shard.new_zeros(unit.numel)
    dist.broadcast(unit.full, src=unit.owner)


# %% right: divides before the reduction, not in place
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            full_grad /= dist.get_world_size()
            dist.reduce(full_grad, unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard = unit.shard - lr * full_grad


# %% right: one reduction in flight while the next unit computes
def owner_fsdp_backward(units, grad, lr):
    in_flight = None

    def finish():
        if in_flight is not None:
            unit, work, full_grad = in_flight
            work.wait()
            if dist.get_rank() == unit.owner:
                unit.shard.sub_(full_grad, alpha=lr / dist.get_world_size())

    for unit in units[::-1]:
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        finish()
        in_flight = None
        if full_grad is not None:
            in_flight = (unit, dist.reduce(full_grad, unit.owner, async_op=True), full_grad)
    finish()


# %% right: does not go below the first unit that trains
def owner_fsdp_backward(units, grad, lr):
    first = min(i for i, unit in enumerate(units) if unit.trains)
    for unit in reversed(units[first:]):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if unit.trains:
            dist.reduce(full_grad, dst=unit.owner)
            if unit.owner == dist.get_rank():
                unit.shard -= full_grad * (lr / dist.get_world_size())
        del full_grad


# %% wrong values: does nothing
# says: nothing was updated
def owner_fsdp_backward(units, grad, lr):
    return None


# %% wrong values: forgets the mean
# says: did you average?
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad


# %% wrong values: the owner uses its own gradients only
# says: this is what you get if
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None and dist.get_rank() == unit.owner:
            unit.shard -= lr * full_grad / dist.get_world_size()


# %% wrong values: divides by two, right at world size 2 only
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad / min(2, dist.get_world_size())


# %% wrong values: reduces to rank 0, whoever owns
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=0)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad / dist.get_world_size()


# %% wrong values: only rank 0 updates
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if dist.get_rank() == unit.owner == 0:
                unit.shard -= lr * full_grad / dist.get_world_size()


# %% wrong values: updates before backward, so that the gradient is of other weights
def owner_fsdp_backward(units, grad, lr):
    for unit in units:
        fetch(unit)
        unit.full = unit.full * (1 - lr)
        if dist.get_rank() == unit.owner:
            unit.shard = unit.full.clone()
        unit.full = None
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None


# %% wrong values: goes through the units forwards
def owner_fsdp_backward(units, grad, lr):
    for unit in units:
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad / dist.get_world_size()


# %% wrong values: the owner skips the collective
# says: rank
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad / dist.get_world_size()
            else:
                dist.reduce(full_grad, dst=unit.owner)


# %% wrong values: an unfilled stub would say so too
def owner_fsdp_backward(units, grad, lr):
    raise NotImplementedError


# %% wrong bytes: all_reduce, of which only the owner needs the result
# says: all_reduce
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.all_reduce(full_grad)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad / dist.get_world_size()


# %% wrong bytes: frozen units are reduced too
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is None:
            full_grad = unit.shard.new_zeros(unit.numel)
        dist.reduce(full_grad, dst=unit.owner)
        if dist.get_rank() == unit.owner:
            unit.shard -= lr * full_grad / dist.get_world_size()


# %% wrong bytes: the owner broadcasts what it has updated
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad / dist.get_world_size()
        full_grad = None
        fetch(unit)
        unit.full = None


# %% wrong memory: reduces when backward is over, and keeps all gradients until then
def owner_fsdp_backward(units, grad, lr):
    found = []
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            found.append((unit, full_grad))
    for unit, full_grad in found:
        dist.reduce(full_grad, dst=unit.owner)
        if dist.get_rank() == unit.owner:
            unit.shard -= lr * full_grad / dist.get_world_size()


# %% wrong memory: fetches every unit before backward begins
def owner_fsdp_backward(units, grad, lr):
    for unit in units:
        fetch(unit)
    for unit in reversed(units):
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad / dist.get_world_size()


# %% wrong memory: never deletes
# says: at the end
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, full_grad = unit.backward(grad)
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad / dist.get_world_size()


# %% wrong memory: leaves whole gradients in unit.grad
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        fetch(unit)
        grad, unit.grad = unit.backward(grad)
        unit.full = None
        if unit.trains:
            dist.reduce(unit.grad, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * unit.grad / dist.get_world_size()


# %% wrong values: the library's own, under an alias
# says: is closed here
from importlib import import_module


def owner_fsdp_backward(units, grad, lr):
    owned = getattr(import_module("course_lib.parallel.fsdp._flat_param"), "FlatParam")
    return owned(units, grad)


# %% wrong values: torch's FSDP
# says: is closed here
def owner_fsdp_backward(units, grad, lr):
    from torch.distributed.fsdp import fully_shard as cut

    cut(units[0]._template)


# %% wrong memory: fetches every unit before backward begins and hides it in lists of numbers
def owner_fsdp_backward(units, grad, lr):
    stash = {}
    for unit in units:
        full = unit.shard.clone() if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(full, src=unit.owner)
        stash[unit] = full.tolist()
        del full
    for unit in reversed(units):
        unit.full = torch.tensor(stash.pop(unit), dtype=unit.shard.dtype)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad / dist.get_world_size()


# %% wrong values: averages over samples and ranks
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        unit.full = unit.shard.clone() if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * full_grad / (dist.get_world_size() * len(grad))


# %% wrong values: takes the step up
# says: up the gradient
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        unit.full = unit.shard.clone() if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard += lr * full_grad / dist.get_world_size()


# %% wrong values: rebinds a local name instead of the shard
# says: nothing was updated
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        unit.full = unit.shard.clone() if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            shard = unit.shard
            if dist.get_rank() == unit.owner:
                shard = shard - lr * full_grad / dist.get_world_size()


# %% wrong values: a gradient of half the precision on the wire
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        unit.full = unit.shard.clone() if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            half = full_grad.float()
            dist.reduce(half, dst=unit.owner)
            if dist.get_rank() == unit.owner:
                unit.shard -= lr * half.double() / dist.get_world_size()


# %% wrong memory: the owner leaves its unit whole
# says: no unit must have `full` set
def owner_fsdp_backward(units, grad, lr):
    for unit in reversed(units):
        mine = dist.get_rank() == unit.owner
        unit.full = unit.shard if mine else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        grad, full_grad = unit.backward(grad)
        if not mine:
            unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if mine:
                unit.shard.sub_(lr * full_grad / dist.get_world_size())


# %% right: two helpers, add_ with alpha, works
def bring(unit):
    unit.full = (
        unit.shard if dist.get_rank() == unit.owner else torch.empty(unit.numel, dtype=unit.shard.dtype)
    )
    dist.broadcast(unit.full, unit.owner, async_op=True).wait()


def owner_fsdp_backward(units, grad, lr):
    n, g = dist.get_world_size(), grad
    for unit in units[::-1]:
        bring(unit)
        g, flat = unit.backward(g)
        unit.full = None
        if unit.trains:
            dist.reduce(flat, unit.owner, op=dist.ReduceOp.SUM, async_op=True).wait()
            if unit.owner == dist.get_rank():
                unit.shard.add_(flat, alpha=-lr / n)


# %% right: broadcasts the next unit while this one computes
def owner_fsdp_backward(units, grad, lr):
    rank, order = dist.get_rank(), list(reversed(units))

    def launch(unit):
        unit.full = unit.shard.clone() if rank == unit.owner else unit.shard.new_empty(unit.numel)
        return dist.broadcast(unit.full, src=unit.owner, async_op=True)

    work = launch(order[0])
    for unit, following in zip(order, [*order[1:], None]):
        work.wait()
        if following is not None:
            work = launch(following)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=unit.owner)
            if rank == unit.owner:
                unit.shard = unit.shard - lr / dist.get_world_size() * full_grad
        full_grad = None
