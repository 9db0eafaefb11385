# Answers to fsdp_forward: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: seven right styles, and each wrong loop differs in what it sends or keeps.

# %% setup
import torch
import torch.distributed as dist


def whole(unit):
    full = unit.shard.new_empty(dist.get_world_size() * len(unit.shard))
    dist.all_gather_into_tensor(full, unit.shard)
    return full


# %% right: all_gather into pieces of one vector; skips communication alone
def fsdp_forward(units, x):
    n = dist.get_world_size()
    for unit in units:
        if n == 1:
            unit.full = unit.shard
        else:
            unit.full = torch.zeros(n, len(unit.shard), dtype=unit.shard.dtype).view(-1)
            dist.all_gather(list(unit.full.chunk(n)), unit.shard)
        x = unit.forward(x)
        if unit != units[-1]:
            unit.full = None
    return x


# %% right: a list of pieces and cat, freed in time; asynchronous
def fsdp_forward(units, x):
    for index, unit in enumerate(units):
        pieces = [torch.empty_like(unit.shard) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, unit.shard, async_op=True).wait()
        unit.full = torch.cat(pieces)
        pieces = None
        x = unit.forward(x)
        if index + 1 < len(units):
            unit.full = None
    return x


# %% right: frees the one before, just before it gathers
def fsdp_forward(units, x):
    before = None
    for unit in units:
        if before is not None:
            before.full = None
        unit.full = whole(unit)
        x = unit.forward(x)
        before = unit
    return x


# %% right: without the padding
def fsdp_forward(units, x):
    for unit in units[:-1]:
        unit.full = whole(unit)[: unit.numel]
        x = unit.forward(x)
        unit.full = None
    units[-1].full = whole(units[-1])
    return units[-1].forward(x)


# %% wrong values: does nothing
def fsdp_forward(units, x):
    return x


# %% wrong values: every rank repeats its own shard
def fsdp_forward(units, x):
    for unit in units:
        unit.full = unit.shard.repeat(dist.get_world_size())
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong values: own shard first, right on rank 0 only
# says: right on rank 0 only
def fsdp_forward(units, x):
    for unit in units:
        unit.full = whole(unit).roll(-dist.get_rank() * len(unit.shard))
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong values: exchanges halves, right at world size 2 only
def fsdp_forward(units, x):
    for unit in units:
        full = whole(unit)
        full[2 * len(unit.shard) :] = 0
        unit.full = full
        full = None
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong values: the padding is taken for parameters: cut where the shards end
# says: must be whole
def fsdp_forward(units, x):
    n = dist.get_world_size()
    for unit in units:
        unit.full = whole(unit)[: unit.numel // n * n]
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong values: an in-place update changes the shard
# says: shard of unit
def fsdp_forward(units, x):
    for unit in units:
        unit.full = whole(unit)
        x = unit.forward(x)
        unit.shard *= 0
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong values: rank 1 does not gather the last unit
# says: rank 1
def fsdp_forward(units, x):
    for unit in units:
        if dist.get_rank() == 1 and unit is units[-1]:
            unit.full = unit.shard.repeat(dist.get_world_size())
        else:
            unit.full = whole(unit)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong bytes: all_reduce of the zero-padded shard
# says: all_reduce
def fsdp_forward(units, x):
    for unit in units:
        size = len(unit.shard)
        unit.full = unit.shard.new_zeros(dist.get_world_size() * size)
        unit.full[dist.get_rank() * size : (dist.get_rank() + 1) * size] = unit.shard
        dist.all_reduce(unit.full)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong bytes: gathers twice
def fsdp_forward(units, x):
    for unit in units:
        unit.full = whole(unit)
        dist.all_gather_into_tensor(unit.full, unit.shard)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong memory: never reshards, ZeRO-2's memory
# says: Set unit.full = None
def fsdp_forward(units, x):
    for unit in units:
        unit.full = whole(unit)
        x = unit.forward(x)
    return x


# %% wrong memory: an FSDP that gathers all at the start
def fsdp_forward(units, x):
    for unit in units:
        unit.full = whole(unit)
    for unit in units:
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong memory: keeps the whole model hidden in a list
def fsdp_forward(units, x):
    kept = []
    for unit in units:
        unit.full = whole(unit)
        kept.append(unit.full)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong memory: another name keeps the vector of the unit before
def fsdp_forward(units, x):
    for unit in units:
        fresh = unit.shard.new_empty(dist.get_world_size() * len(unit.shard))
        dist.all_gather_into_tensor(fresh, unit.shard)
        unit.full = fresh
        x = unit.forward(x)
        before = fresh
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong memory: frees the last unit too
# says: Backward begins with the last unit
def fsdp_forward(units, x):
    for unit in units:
        unit.full = whole(unit)
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong values: the library's, under an alias
# says: is closed here
from course_lib.comm.flat import all_gather_flat as bring


def fsdp_forward(units, x):
    for unit in units:
        unit.full = unit.shard.new_empty(dist.get_world_size() * len(unit.shard))
        bring(unit.full, unit.shard, None)
        x = unit.forward(x)
    return x


# %% wrong values: a subclass of the library's FSDP
# says: is closed here
import course_lib.parallel.fsdp as ready


class Mine(ready.FSDP):
    pass


def fsdp_forward(units, x):
    return Mine(units[0]._template)(x)


# %% wrong values: torch's, through getattr
# says: is closed here
import torch.distributed.fsdp


def fsdp_forward(units, x):
    return getattr(torch.distributed.fsdp, "fully_shard")(units[0]._template)(x)


# %% wrong memory: gathers all up front, hides it in numpy and slices
# says: outside tensors
def fsdp_forward(units, x):
    stash = [whole(unit).numpy().copy() for unit in units]
    for unit, values in zip(units, stash, strict=True):
        unit.full = torch.from_numpy(values)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong bytes: gathers pickled objects
def fsdp_forward(units, x):
    for unit in units:
        pieces = [None] * dist.get_world_size()
        dist.all_gather_object(pieces, unit.shard)
        unit.full = torch.cat(pieces)
        pieces = None
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong memory: empties the storage, and leaves `full` set
def fsdp_forward(units, x):
    for unit in units:
        unit.full = whole(unit)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full.untyped_storage().resize_(0)
    return x


# %% wrong memory: an empty view of the unit keeps its storage
def fsdp_forward(units, x):
    for unit in units:
        unit.full = whole(unit)
        x = unit.forward(x)
        unit.rest = unit.full[:0]
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong values: four ranks, hard-coded
def fsdp_forward(units, x):
    for unit in units:
        pieces = [torch.zeros_like(unit.shard) for _ in range(4)]
        dist.all_gather(pieces[: dist.get_world_size()], unit.shard)
        unit.full = torch.cat(pieces)[: 4 * len(unit.shard)]
        if dist.get_world_size() != 4:
            unit.full = torch.cat([unit.shard] * 4)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong values: pieces in reverse order
def fsdp_forward(units, x):
    for unit in units:
        pieces = [torch.empty_like(unit.shard) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, unit.shard)
        unit.full = torch.cat(pieces[::-1])
        pieces = None
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% right: every rank broadcasts its piece into place
def fsdp_forward(units, x):
    n, rank = dist.get_world_size(), dist.get_rank()
    for unit in units:
        size = unit.shard.numel()
        unit.full = unit.shard.new_zeros(n * size)
        unit.full[rank * size : (rank + 1) * size] = unit.shard
        works = [
            dist.broadcast(unit.full[src * size : (src + 1) * size], src=src, async_op=True)
            for src in range(n)
        ]
        for work in works:
            work.wait()
        works = work = None
        x = unit.forward(x)
        if unit.name != units[-1].name:
            unit.full = None
    return x


# %% right: a ring of sends and receives
def fsdp_forward(units, x):
    n, rank = dist.get_world_size(), dist.get_rank()
    for i in range(len(units)):
        shard = units[i].shard
        pieces = list(torch.zeros(n * len(shard), dtype=shard.dtype).split(len(shard)))
        pieces[rank].copy_(shard)
        for hop in range(n - 1):
            sent = dist.isend(pieces[(rank - hop) % n], (rank + 1) % n)
            dist.recv(pieces[(rank - hop - 1) % n], (rank - 1) % n)
            sent.wait()
        units[i].full = torch.cat(pieces)
        pieces = sent = None
        x = units[i].forward(x)
        if i < len(units) - 1:
            units[i].full = None
    return x


# %% right: all_to_all of repeated shards
def fsdp_forward(units, x):
    n = dist.get_world_size()
    for unit in units:
        unit.full = unit.shard.new_empty(n * len(unit.shard))
        dist.all_to_all_single(unit.full, unit.shard.repeat(n))
        x = unit.forward(x)
        unit.full = unit.full if unit is units[-1] else None
    return x
