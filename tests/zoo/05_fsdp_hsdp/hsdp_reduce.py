# Answers to hsdp_reduce: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import torch
import torch.distributed as dist
from torch.nn.functional import pad


def padded(grad, mesh):
    return pad(grad, (0, -len(grad) % mesh.size("dp_shard")))


# %% right: lists of pieces, divides first, asynchronous
def hsdp_reduce(grad, mesh):
    k, m = mesh.size("dp_shard"), mesh.size("dp_replicate")
    pieces = list((padded(grad, mesh) / (k * m)).chunk(k))
    mine = torch.zeros_like(pieces[0])
    dist.reduce_scatter(mine, pieces, group=mesh.group("dp_shard"), async_op=True).wait()
    dist.all_reduce(mine, group=mesh.group("dp_replicate"), async_op=True).wait()
    return mine


# %% right: skips axes of one rank
def hsdp_reduce(grad, mesh):
    k, m = mesh.size("dp_shard"), mesh.size("dp_replicate")
    full = padded(grad, mesh)
    mine = full
    if k > 1:
        mine = full.new_empty(len(full) // k)
        dist.reduce_scatter_tensor(mine, full, group=mesh.group("dp_shard"))
    if m > 1:
        dist.all_reduce(mine, group=mesh.group("dp_replicate"))
    return mine / dist.get_world_size()


# %% right: all_to_all inside, all_gather's sum is too much across, so halves of an all_reduce
def hsdp_reduce(grad, mesh):
    k, m = mesh.size("dp_shard"), mesh.size("dp_replicate")
    full = padded(grad, mesh)
    got = torch.empty_like(full)
    dist.all_to_all_single(got, full, group=mesh.group("dp_shard"))
    mine = got.view(k, -1).mean(0)
    dist.all_reduce(mine, group=mesh.group("dp_replicate"))
    return mine / m


# %% wrong values: does nothing
# says: nothing was communicated
def hsdp_reduce(grad, mesh):
    return padded(grad, mesh).chunk(mesh.size("dp_shard"))[mesh.rank("dp_shard")].clone()


# %% wrong values: forgets the mean
# says: did you average?
def hsdp_reduce(grad, mesh):
    full = padded(grad, mesh)
    mine = full.new_empty(len(full) // mesh.size("dp_shard"))
    dist.reduce_scatter_tensor(mine, full, group=mesh.group("dp_shard"))
    dist.all_reduce(mine, group=mesh.group("dp_replicate"))
    return mine


# %% wrong values: nothing goes across
# says: nothing went across
def hsdp_reduce(grad, mesh):
    full = padded(grad, mesh)
    mine = full.new_empty(len(full) // mesh.size("dp_shard"))
    dist.reduce_scatter_tensor(mine, full, group=mesh.group("dp_shard"))
    return mine / mesh.size("dp_shard")


# %% wrong values: the wrong group, shards across and replicates inside
def hsdp_reduce(grad, mesh):
    full = pad(grad, (0, -len(grad) % mesh.size("dp_replicate")))
    mine = full.new_empty(len(full) // mesh.size("dp_replicate"))
    dist.reduce_scatter_tensor(mine, full, group=mesh.group("dp_replicate"))
    dist.all_reduce(mine, group=mesh.group("dp_shard"))
    return mine / dist.get_world_size()


# %% wrong values: divides by dp_shard only
# says: divided by dp_shard only
def hsdp_reduce(grad, mesh):
    full = padded(grad, mesh)
    mine = full.new_empty(len(full) // mesh.size("dp_shard"))
    dist.reduce_scatter_tensor(mine, full, group=mesh.group("dp_shard"))
    dist.all_reduce(mine, group=mesh.group("dp_replicate"))
    return mine / mesh.size("dp_shard")


# %% wrong values: reduce_scatter over the world, FSDP's shards
def hsdp_reduce(grad, mesh):
    n = dist.get_world_size()
    full = pad(grad, (0, -len(grad) % n))
    mine = full.new_empty(len(full) // n)
    dist.reduce_scatter_tensor(mine, full)
    return mine / n


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def hsdp_reduce(grad, mesh):
    full = padded(grad, mesh)
    dist.all_reduce(full)
    mine = full.chunk(mesh.size("dp_shard"))[mesh.rank("dp_shard")] / dist.get_world_size()
    return mine if dist.get_rank() == 0 else torch.zeros_like(mine)


# %% wrong values: cuts off what does not divide
def hsdp_reduce(grad, mesh):
    k = mesh.size("dp_shard")
    full = grad[: len(grad) // k * k].contiguous()
    mine = full.new_empty(len(full) // k)
    dist.reduce_scatter_tensor(mine, full, group=mesh.group("dp_shard"))
    dist.all_reduce(mine, group=mesh.group("dp_replicate"))
    return mine / dist.get_world_size()


# %% wrong values: hard-coded 2 x 2
def hsdp_reduce(grad, mesh):
    full = padded(grad, mesh)
    mine = full.new_empty(len(full) // mesh.size("dp_shard"))
    dist.reduce_scatter_tensor(mine, full, group=mesh.group("dp_shard"))
    dist.all_reduce(mine, group=mesh.group("dp_replicate"))
    return mine / (4 if dist.get_world_size() > 1 else 1)


# %% wrong values: rank 0 skips the all_reduce across
# says: rank 0
def hsdp_reduce(grad, mesh):
    full = padded(grad, mesh)
    mine = full.new_empty(len(full) // mesh.size("dp_shard"))
    dist.reduce_scatter_tensor(mine, full, group=mesh.group("dp_shard"))
    if dist.get_rank() > 0 or mesh.size("dp_replicate") == 1:
        dist.all_reduce(mine, group=mesh.group("dp_replicate"))
    return mine / dist.get_world_size()


# %% wrong across: one all_reduce over the world, then a shard of it
# says: Reduce inside first
def hsdp_reduce(grad, mesh):
    full = padded(grad, mesh)
    if mesh.size("dp_replicate") == 1:
        mine = full.new_empty(len(full) // mesh.size("dp_shard"))
        dist.reduce_scatter_tensor(mine, full, group=mesh.group("dp_shard"))
        return mine / dist.get_world_size()
    dist.all_reduce(full)
    return full.chunk(mesh.size("dp_shard"))[mesh.rank("dp_shard")] / dist.get_world_size()


# %% wrong across: the whole gradient crosses before it is cut
def hsdp_reduce(grad, mesh):
    full = padded(grad, mesh)
    dist.all_reduce(full, group=mesh.group("dp_replicate"))
    mine = full.new_empty(len(full) // mesh.size("dp_shard"))
    dist.reduce_scatter_tensor(mine, full, group=mesh.group("dp_shard"))
    return mine / dist.get_world_size()


# %% wrong inside: all_reduce inside, then a shard of it
def hsdp_reduce(grad, mesh):
    full = padded(grad, mesh)
    dist.all_reduce(full, group=mesh.group("dp_shard"))
    mine = full.chunk(mesh.size("dp_shard"))[mesh.rank("dp_shard")].clone()
    dist.all_reduce(mine, group=mesh.group("dp_replicate"))
    return mine / dist.get_world_size()


# %% wrong inside, across: gathers what all ranks have and adds it up
def hsdp_reduce(grad, mesh):
    full = padded(grad, mesh)
    found = [torch.empty_like(full) for _ in range(dist.get_world_size())]
    dist.all_gather(found, full)
    return sum(found).chunk(mesh.size("dp_shard"))[mesh.rank("dp_shard")] / dist.get_world_size()


# %% wrong values: the library's flat parameters, under an alias
# says: is closed here
import course_lib.comm.flat_param as ready


def hsdp_reduce(grad, mesh):
    return ready.FlatParam


# %% wrong values: torch's FSDP, through getattr
# says: is closed here
import torch.distributed.fsdp


def hsdp_reduce(grad, mesh):
    return getattr(torch.distributed.fsdp, "fully_shard")(grad)
