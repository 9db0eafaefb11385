# Answers to fsdp_backward: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: six right styles, and each wrong loop differs in when it gathers, reduces or frees.

# %% setup
import torch
import torch.distributed as dist


def gather(unit):
    if unit.full is None:
        unit.full = unit.shard.new_empty(dist.get_world_size() * len(unit.shard))
        dist.all_gather_into_tensor(unit.full, unit.shard)


def reduce(unit, full_grad):
    unit.grad = torch.empty_like(unit.shard)
    dist.reduce_scatter_tensor(unit.grad, full_grad)
    unit.grad /= dist.get_world_size()


# %% right: lists of pieces, divides first
def fsdp_backward(units, grad):
    n = dist.get_world_size()
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            mine = torch.zeros_like(unit.shard)
            dist.reduce_scatter(mine, list((full_grad / n).chunk(n)))
            unit.grad = mine


# %% right: one reduction in flight while the next unit computes
def fsdp_backward(units, grad):
    in_flight = []
    for unit in units[::-1]:
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        for work, _ in in_flight:
            work.wait()
        in_flight = []
        if full_grad is not None:
            unit.grad = torch.empty_like(unit.shard)
            in_flight = [(dist.reduce_scatter_tensor(unit.grad, full_grad, async_op=True), full_grad)]
    for work, _ in in_flight:
        work.wait()
    for unit in units:
        if unit.grad is not None:
            unit.grad = unit.grad / dist.get_world_size()


# %% right: all_to_all, then each rank adds up its own pieces
def fsdp_backward(units, grad):
    n = dist.get_world_size()
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            got = torch.empty_like(full_grad)
            dist.all_to_all_single(got, full_grad)
            unit.grad = got.view(n, -1).mean(0)
            got = full_grad = None


# %% right: stops at the first unit that trains; pads by itself
def fsdp_backward(units, grad):
    n = dist.get_world_size()
    for index in reversed(range(len(units))):
        unit = units[index]
        if not any(below.trains for below in units[: index + 1]):
            break
        gather(unit)
        unit.full = unit.full[: unit.numel]
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if unit.trains:
            missing = n * len(unit.shard) - len(full_grad)
            reduce(unit, torch.nn.functional.pad(full_grad, (0, missing)))


# %% wrong values: does nothing
def fsdp_backward(units, grad):
    return None


# %% wrong values: forgets the mean
# says: did you average?
def fsdp_backward(units, grad):
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            unit.grad = torch.empty_like(unit.shard)
            dist.reduce_scatter_tensor(unit.grad, full_grad)


# %% wrong values: keeps its part of its own gradient
# says: nothing that was communicated is in it
def fsdp_backward(units, grad):
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            unit.grad = full_grad.chunk(dist.get_world_size())[dist.get_rank()].clone()


# %% wrong values: everybody keeps rank 0's part
# says: right on rank 0 only
def fsdp_backward(units, grad):
    n = dist.get_world_size()
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.all_reduce(full_grad)
            unit.grad = full_grad.chunk(n)[0].clone() / n


# %% wrong values: divides by two, right at world size 2 only
def fsdp_backward(units, grad):
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            unit.grad = torch.empty_like(unit.shard)
            dist.reduce_scatter_tensor(unit.grad, full_grad)
            unit.grad /= min(2, dist.get_world_size())


# %% wrong values: keeps the whole gradient
# says: must have shape
def fsdp_backward(units, grad):
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.all_reduce(full_grad)
            unit.grad = full_grad / dist.get_world_size()


# %% wrong values: gives frozen units a gradient of zero
# says: frozen units with a gradient
def fsdp_backward(units, grad):
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        reduce(unit, torch.zeros_like(unit.full) if full_grad is None else full_grad)
        unit.full = None


# %% wrong values: forgets to go on with the gradient
def fsdp_backward(units, grad):
    for unit in reversed(units):
        gather(unit)
        _, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            reduce(unit, full_grad)


# %% wrong values: rank 0 has no time for the frozen unit's gather
# says: rank 0
def fsdp_backward(units, grad):
    for unit in reversed(units):
        if unit.trains or dist.get_rank() != 0 or dist.get_world_size() == 1:
            gather(unit)
        else:
            unit.full = unit.shard.repeat(dist.get_world_size())
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            reduce(unit, full_grad)


# %% wrong bytes: all_reduce, then keeps its part
# says: all_reduce
def fsdp_backward(units, grad):
    n, rank = dist.get_world_size(), dist.get_rank()
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.all_reduce(full_grad)
            unit.grad = full_grad.chunk(n)[rank].clone() / n


# %% wrong bytes: reduces frozen units, and throws the result away
def fsdp_backward(units, grad):
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        reduce(unit, torch.zeros_like(unit.full) if full_grad is None else full_grad)
        unit.full = None
        if not unit.trains:
            unit.grad = None


# %% wrong bytes: frees the last unit, which forward had kept, and gathers it again
# says: The last unit is still whole
def fsdp_backward(units, grad):
    for unit in reversed(units):
        unit.full = None
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            reduce(unit, full_grad)


# %% wrong memory: keeps every whole gradient until backward is over
def fsdp_backward(units, grad):
    found = []
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            found.append((unit, full_grad))
    for unit, full_grad in found:
        reduce(unit, full_grad)


# %% wrong memory: never reshards
def fsdp_backward(units, grad):
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        if full_grad is not None:
            reduce(unit, full_grad)


# %% wrong memory: gathers every unit before backward
def fsdp_backward(units, grad):
    for unit in units:
        gather(unit)
    for unit in reversed(units):
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            reduce(unit, full_grad)


# %% wrong memory: a shard that is a view keeps the whole
def fsdp_backward(units, grad):
    n, rank = dist.get_world_size(), dist.get_rank()
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            unit.grad = full_grad.chunk(n)[rank]
            dist.reduce_scatter_tensor(unit.grad, full_grad.clone())
            unit.grad /= n


# %% wrong bytes, memory: awaits nothing, gathers twice, keeps all
def fsdp_backward(units, grad):
    kept = []
    for unit in reversed(units):
        gather(unit)
        kept.append(unit.full)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            reduce(unit, full_grad)
            reduce(unit, full_grad)


# %% wrong values: the library's, under an alias
# says: is closed here
from course_lib.comm import flat as helper


def fsdp_backward(units, grad):
    helper.reduce_scatter_flat(units[0].grad, grad, None)


# %% wrong values: torch's FSDP, through getattr
# says: is closed here
import torch.distributed.fsdp


def fsdp_backward(units, grad):
    getattr(torch.distributed.fsdp, "FullyShardedDataParallel")(units[0]._template)


# %% wrong bytes: gathers everybody's gradients and adds them up at home
def fsdp_backward(units, grad):
    n, rank = dist.get_world_size(), dist.get_rank()
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            size = len(unit.shard)
            unit.grad = torch.zeros_like(unit.shard)
            pieces = [torch.empty_like(full_grad) for _ in range(n)]
            dist.all_gather(pieces, full_grad)
            for piece in pieces:
                unit.grad += piece[rank * size : (rank + 1) * size] / n
        full_grad = pieces = piece = None


# %% wrong bytes: reduces to rank 0, which scatters
def fsdp_backward(units, grad):
    n, rank = dist.get_world_size(), dist.get_rank()
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            dist.reduce(full_grad, dst=0)
            unit.grad = torch.empty_like(unit.shard)
            dist.scatter(unit.grad, list((full_grad / n).chunk(n)) if rank == 0 else None, src=0)


# %% wrong memory: gathers all before backward, in numpy
def fsdp_backward(units, grad):
    n = dist.get_world_size()
    stash = {}
    for unit in units[:-1]:
        gather(unit)
        stash[unit], unit.full = unit.full.numpy().copy(), None
    for unit in reversed(units):
        if unit in stash:
            unit.full = torch.from_numpy(stash.pop(unit))
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            unit.grad = torch.empty_like(unit.shard)
            dist.reduce_scatter_tensor(unit.grad, full_grad)
            unit.grad /= n


# %% wrong values: float32 on the wire
def fsdp_backward(units, grad):
    n = dist.get_world_size()
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            mine = torch.empty_like(unit.shard, dtype=torch.float32)
            dist.reduce_scatter_tensor(mine, full_grad.float())
            unit.grad = mine.double() / n


# %% wrong values: skips frozen units altogether
def fsdp_backward(units, grad):
    n = dist.get_world_size()
    for unit in reversed([unit for unit in units if unit.trains]):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        unit.grad = torch.empty_like(unit.shard)
        dist.reduce_scatter_tensor(unit.grad, full_grad)
        unit.grad /= n


# %% wrong values: every rank keeps the part after its own
def fsdp_backward(units, grad):
    n, rank = dist.get_world_size(), dist.get_rank()
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            unit.grad = torch.empty_like(unit.shard)
            dist.reduce_scatter(unit.grad, list(full_grad.roll(len(unit.shard)).chunk(n)))
            unit.grad /= n


# %% right: one reduce to each owner of a piece
def fsdp_backward(units, grad):
    n, rank = dist.get_world_size(), dist.get_rank()
    for unit in units[::-1]:
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is None:
            continue
        pieces = list(full_grad.split(len(unit.shard)))
        for dst, piece in enumerate(pieces):
            dist.reduce(piece, dst=dst)
        unit.grad = pieces[rank] / n
        full_grad = piece = pieces = None


# %% right: gathers the next unit while this one computes
def fsdp_backward(units, grad):
    n, work = dist.get_world_size(), None
    for i in reversed(range(len(units))):
        if work is not None:
            work.wait()
        if i > 0:
            units[i - 1].full = units[i].shard.new_empty(n * len(units[i - 1].shard))
            work = dist.all_gather_into_tensor(units[i - 1].full, units[i - 1].shard, async_op=True)
        grad, full_grad = units[i].backward(grad)
        units[i].full = None
        if full_grad is not None:
            mine = full_grad.new_zeros(len(units[i].shard))
            dist.reduce_scatter_tensor(mine, full_grad.div_(n))
            units[i].grad = mine
        full_grad = None


# %% wrong bytes: sums in float64 whatever the units are
def fsdp_backward(units, grad):
    n = dist.get_world_size()
    for unit in reversed(units):
        gather(unit)
        grad, full_grad = unit.backward(grad)
        unit.full = None
        if full_grad is not None:
            wide = full_grad.double()
            mine = wide.new_empty(len(unit.shard))
            dist.reduce_scatter_tensor(mine, wide)
            unit.grad = (mine / n).to(unit.shard.dtype)
            del wide, mine
        del full_grad
