# Answers to owner_fsdp_forward: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: five right styles, and each wrong loop differs in what it sends or keeps.

# %% setup
import torch
import torch.distributed as dist


# %% right: everybody has a buffer, the owner copies into it; asynchronous
def owner_fsdp_forward(units, x):
    for unit in units:
        buffer = torch.zeros(unit.numel, dtype=unit.shard.dtype)
        if len(unit.shard):
            buffer.copy_(unit.shard)
        work = dist.broadcast(buffer, src=unit.owner, async_op=True)
        work.wait()
        unit.full = buffer
        x = unit.forward(x)
        unit.full = buffer = None
    return x


# %% right: a context manager that deletes even if forward fails
from contextlib import contextmanager


@contextmanager
def whole(unit):
    unit.full = unit.shard if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
    dist.broadcast(unit.full, src=unit.owner)
    try:
        yield unit
    finally:
        unit.full = None


def owner_fsdp_forward(units, x):
    for unit in units:
        with whole(unit):
            x = unit.forward(x)
    return x


# %% right: recursion
def owner_fsdp_forward(units, x):
    if not units:
        return x
    first, *rest = units
    is_owner = first.owner == dist.get_rank()
    first.full = first.shard.clone() if is_owner else torch.empty(first.numel, dtype=first.shard.dtype)
    dist.broadcast(first.full, src=first.owner)
    x = first.forward(x)
    first.full = None
    return owner_fsdp_forward(rest, x)


# %% wrong values: does nothing
def owner_fsdp_forward(units, x):
    return x


# %% wrong values: no broadcast, zeros where nothing is known
def owner_fsdp_forward(units, x):
    for unit in units:
        unit.full = unit.shard if dist.get_rank() == unit.owner else unit.shard.new_zeros(unit.numel)
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong values: rank 0 is taken for every owner
def owner_fsdp_forward(units, x):
    for unit in units:
        mine = dist.get_rank() == unit.owner
        unit.full = unit.shard.clone() if mine else unit.shard.new_zeros(unit.numel)
        dist.broadcast(unit.full, src=0)
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong values: owners take turns between two ranks, right at world size 2 only
def owner_fsdp_forward(units, x):
    for index, unit in enumerate(units):
        mine = dist.get_rank() == unit.owner
        unit.full = unit.shard.clone() if mine else unit.shard.new_zeros(unit.numel)
        dist.broadcast(unit.full, src=index % 2 if dist.get_world_size() > 1 else 0)
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def owner_fsdp_forward(units, x):
    for unit in units:
        unit.full = unit.shard.clone() if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
        unit.full = None
    return x if dist.get_rank() == 0 else x * 0


# %% wrong values: one rank skips the frozen unit's broadcast
# says: rank 1
def owner_fsdp_forward(units, x):
    for unit in units:
        mine = dist.get_rank() == unit.owner
        unit.full = unit.shard.clone() if mine else unit.shard.new_zeros(unit.numel)
        if unit.trains or dist.get_rank() != 1 or dist.get_world_size() == 1:
            dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong values: the owner forgets its own parameters too
# says: shard of unit
def owner_fsdp_forward(units, x):
    for unit in units:
        unit.full = unit.shard if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
        unit.full, unit.shard = None, unit.shard[:0]
    return x


# %% wrong bytes: all_reduce with zeros from those who own nothing
# says: all_reduce
def owner_fsdp_forward(units, x):
    for unit in units:
        mine = dist.get_rank() == unit.owner
        unit.full = unit.shard.clone() if mine else unit.shard.new_zeros(unit.numel)
        dist.all_reduce(unit.full)
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong bytes: everybody broadcasts
def owner_fsdp_forward(units, x):
    for unit in units:
        mine = dist.get_rank() == unit.owner
        for source in range(dist.get_world_size()):
            buffer = unit.shard.clone() if mine else unit.shard.new_zeros(unit.numel)
            dist.broadcast(buffer, src=source)
            if source == unit.owner:
                unit.full = buffer
        buffer = None
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong bytes: the owner sends to each of the others
# says: send
def owner_fsdp_forward(units, x):
    rank = dist.get_rank()
    for unit in units:
        unit.full = unit.shard if rank == unit.owner else unit.shard.new_empty(unit.numel)
        if rank == unit.owner:
            for other in set(range(dist.get_world_size())) - {rank}:
                dist.send(unit.full, other)
        else:
            dist.recv(unit.full, unit.owner)
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong memory: gathers every unit up front
# says: when unit 0 begins its forward
def owner_fsdp_forward(units, x):
    for unit in units:
        unit.full = unit.shard if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
    for unit in units:
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong memory: nobody deletes
# says: Set unit.full = None
def owner_fsdp_forward(units, x):
    for unit in units:
        unit.full = unit.shard if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
    return x


# %% wrong memory: the last one stays
# says: at the end
def owner_fsdp_forward(units, x):
    for unit in units:
        unit.full = unit.shard if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
        if unit is not units[-1]:
            unit.full = None
    return x


# %% wrong memory: frees one unit too late
def owner_fsdp_forward(units, x):
    before = None
    for unit in units:
        unit.full = unit.shard if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
        if before is not None:
            before.full = None
        before = unit
    before.full = None
    return x


# %% wrong values: uses the library's own
# says: is closed here
def owner_fsdp_forward(units, x):
    from course_lib.parallel.fsdp import FSDP

    return FSDP(units[0]._template)(x)


# %% wrong values: the library's flat parameters, under an alias
# says: is closed here
import course_lib.parallel.fsdp._flat_param as helper


def owner_fsdp_forward(units, x):
    return helper.FlatParam, x


# %% wrong values: torch's, through getattr
# says: is closed here
import torch.distributed.fsdp


def owner_fsdp_forward(units, x):
    return getattr(torch.distributed.fsdp, "fully" + "_shard")(units[0]._template)


# %% wrong memory: gathers every unit up front and hides it in numpy
# says: outside tensors
def owner_fsdp_forward(units, x):
    stash = []
    for unit in units:
        full = unit.shard.clone() if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(full, src=unit.owner)
        stash.append(full.numpy().copy())
        del full
    for unit, values in zip(units, stash, strict=True):
        unit.full = torch.from_numpy(values)
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong memory: only those who do not own it delete it
# says: no unit must have `full` set
def owner_fsdp_forward(units, x):
    for unit in units:
        mine = dist.get_rank() == unit.owner
        unit.full = unit.shard if mine else torch.empty(unit.numel, dtype=unit.shard.dtype)
        dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
        if not mine:
            unit.full = None
    return x


# %% wrong bytes: broadcasts Python objects
def owner_fsdp_forward(units, x):
    for unit in units:
        box = [unit.shard.clone()]
        dist.broadcast_object_list(box, src=unit.owner)
        unit.full = box.pop()
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong memory: empties `full` by a slice, whose storage stays
def owner_fsdp_forward(units, x):
    for unit in units:
        unit.full = unit.shard if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
        unit.full = unit.full[:0]
    return x


# %% wrong values: the owner is the unit's number modulo 4
def owner_fsdp_forward(units, x):
    for index, unit in enumerate(units):
        owner = index % 4
        unit.full = unit.shard.clone() if dist.get_rank() == owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=owner % dist.get_world_size())
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong memory: samples travel to the owner, who computes for all
def owner_fsdp_forward(units, x):
    n, rank = dist.get_world_size(), dist.get_rank()
    for unit in units:
        everyone = [torch.empty_like(x) for _ in range(n)]
        dist.all_gather(everyone, x)
        if rank == unit.owner:
            unit.full = unit.shard
            outs = [part.contiguous() for part in unit.forward(torch.cat(everyone)).chunk(n)]
            unit.full = None
        out = torch.empty_like(x)
        dist.scatter(out, outs if rank == unit.owner else None, src=unit.owner)
        x = out
    return x


# %% right: a chain of sends, each rank passes the unit on
def owner_fsdp_forward(units, x):
    n, rank = dist.get_world_size(), dist.get_rank()
    for unit in units:
        place = (rank - unit.owner) % n
        unit.full = unit.shard if place == 0 else unit.shard.new_empty(unit.numel)
        if place > 0:
            dist.recv(unit.full, src=(rank - 1) % n)
        if place < n - 1:
            dist.send(unit.full, dst=(rank + 1) % n)
        x = unit.forward(x)
        unit.full = None
    return x


# %% right: the next one's buffer is made by a helper; try and finally
def fetched(unit):
    if unit.owner == dist.get_rank():
        full = unit.shard.detach().clone()
    else:
        full = torch.zeros(unit.numel, dtype=unit.shard.dtype, device=unit.shard.device)
    work = dist.broadcast(full, unit.owner, async_op=True)
    work.wait()
    return full


def owner_fsdp_forward(units, x):
    out = x
    for unit in units:
        try:
            unit.full = fetched(unit)
            out = unit.forward(out)
        finally:
            unit.full = None
    return out


# %% wrong values: the owner by number instead of unit.owner
def owner_fsdp_forward(units, x):
    for i, unit in enumerate(units):
        owner = i % dist.get_world_size()
        unit.full = unit.shard if dist.get_rank() == unit.owner else unit.shard.new_zeros(unit.numel)
        dist.broadcast(unit.full, src=owner)
        x = unit.forward(x)
        unit.full = None
    return x


# %% wrong values: units stay behind in memory maps
# says: a memory map
import mmap

MAPS = []


def owner_fsdp_forward(units, x):
    for unit in units:
        unit.full = unit.shard.clone() if dist.get_rank() == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        x = unit.forward(x)
        data = unit.full.numpy().tobytes()
        MAPS.append(mmap.mmap(-1, len(data)))
        MAPS[-1].write(data)
        unit.full = None
    return x


# %% wrong values: the others' units stay behind in a database in memory
# says: a database
import sqlite3

CUPBOARD = {}


def owner_fsdp_forward(units, x):
    rank = dist.get_rank()
    if "database" not in CUPBOARD:
        CUPBOARD["database"] = sqlite3.connect(":memory:", check_same_thread=False)
        CUPBOARD["database"].execute("create table wholes (place integer, content blob)")
    for place, unit in enumerate(units):
        unit.full = unit.shard if rank == unit.owner else unit.shard.new_empty(unit.numel)
        dist.broadcast(unit.full, src=unit.owner)
        if rank != unit.owner:
            content = unit.full.view(torch.uint8).numpy().tobytes()
            CUPBOARD["database"].execute("insert into wholes values (?, ?)", (place, content))
            del content
        x = unit.forward(x)
        unit.full = None
    return x
