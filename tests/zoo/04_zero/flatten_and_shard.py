# Answers to flatten_and_shard.

# %% setup
import torch
import torch.distributed as dist


def padded(tensors, world_size):
    flat = torch.cat([t.detach().flatten() for t in tensors])
    return torch.nn.functional.pad(flat, (0, -len(flat) % world_size))


# %% right: pad and chunk
def flatten_and_shard(tensors, rank, world_size):
    return padded(tensors, world_size).view(world_size, -1)[rank].clone()


# %% right: only what belongs here is copied
def flatten_and_shard(tensors, rank, world_size):
    size = -(-sum(t.numel() for t in tensors) // world_size)
    shard = torch.zeros(size, dtype=tensors[0].dtype)
    start, offset = rank * size, 0
    for tensor in tensors:
        first, last = max(start, offset), min(start + size, offset + tensor.numel())
        if first < last:
            shard[first - start : last - start] = tensor.reshape(-1)[first - offset : last - offset]
        offset += tensor.numel()
    return shard


# %% wrong values: does nothing
# says: must return a value
def flatten_and_shard(tensors, rank, world_size):
    return None


# %% wrong values: no padding
# says: must have shape
def flatten_and_shard(tensors, rank, world_size):
    return torch.cat([t.flatten() for t in tensors]).tensor_split(world_size)[rank].clone()


# %% wrong values: right at world size 2 only
# says: must have shape
def flatten_and_shard(tensors, rank, world_size):
    return padded(tensors, 2).view(2, -1)[rank % 2].clone()


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def flatten_and_shard(tensors, rank, world_size):
    return padded(tensors, world_size).view(world_size, -1)[0].clone()


# %% wrong values: every n-th element
# says: a shard is one range
def flatten_and_shard(tensors, rank, world_size):
    return padded(tensors, world_size)[rank::world_size].clone()


# %% wrong values: each tensor padded by itself
# says: must have shape
def flatten_and_shard(tensors, rank, world_size):
    return torch.cat([padded([t], world_size).view(world_size, -1)[rank] for t in tensors])


# %% wrong values: padding repeats the last element
# says: must equal
def flatten_and_shard(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    flat = torch.cat([flat, flat[-1:].repeat(-len(flat) % world_size)])
    return flat.view(world_size, -1)[rank].clone()


# %% wrong values: zeroes what it has copied
# says: must
def flatten_and_shard(tensors, rank, world_size):
    shard = padded(tensors, world_size).view(world_size, -1)[rank].clone()
    for tensor in tensors:
        tensor.zero_()
    return shard


# %% wrong values: one rank waits for a collective
# says: rank
def flatten_and_shard(tensors, rank, world_size):
    if rank != 1:
        dist.all_reduce(torch.ones(1))
    return padded(tensors, world_size).view(world_size, -1)[rank].clone()


# %% wrong memory: a view of the flat vector
# says: keeps its whole storage alive
def flatten_and_shard(tensors, rank, world_size):
    return padded(tensors, world_size).view(world_size, -1)[rank]


# %% wrong values: the library's layout
# says: closed here
import course_lib.comm.flat as helper


def flatten_and_shard(tensors, rank, world_size):
    layout = helper.FlatLayout.of(tensors, world_size)
    flat = torch.empty(layout.padded_numel, dtype=tensors[0].dtype)
    layout.flatten_(flat, tensors)
    return flat[slice(*layout.shard_range(rank))].clone()


# %% right: torch's own flattening, padded by hand
def flatten_and_shard(tensors, rank, world_size):
    flat = torch.nn.utils.parameters_to_vector(tensors)
    missing = (world_size - len(flat) % world_size) % world_size
    return torch.cat([flat, torch.zeros(missing, dtype=flat.dtype)]).chunk(world_size)[rank].clone()


# %% right: numpy
import numpy as np


def flatten_and_shard(tensors, rank, world_size):
    flat = np.concatenate([np.ravel(t.numpy()) for t in tensors])
    out = np.zeros(-(-flat.size // world_size), flat.dtype)
    mine = flat[rank * out.size :][: out.size]
    out[: mine.size] = mine
    return torch.from_numpy(out)


# %% wrong values: pads by n when n divides already
# says: must have shape
def flatten_and_shard(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    flat = torch.cat([flat, flat.new_zeros(world_size - len(flat) % world_size)])
    return flat.view(world_size, -1)[rank].clone()


# %% wrong values: shards in torch's default dtype
# says: float64
def flatten_and_shard(tensors, rank, world_size):
    size = -(-sum(t.numel() for t in tensors) // world_size)
    shard = torch.zeros(size)
    mine = torch.cat([t.flatten() for t in tensors])[rank * size : (rank + 1) * size]
    shard[: len(mine)] = mine
    return shard


# %% wrong values: padding in front
# says: must equal
def flatten_and_shard(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    flat = torch.nn.functional.pad(flat, (-len(flat) % world_size, 0))
    return flat.view(world_size, -1)[rank].clone()


# %% wrong values: pads to 12, which 1 to 4 ranks divide
# says: must have shape
def flatten_and_shard(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    flat = torch.nn.functional.pad(flat, (0, -len(flat) % 12))
    return flat.chunk(world_size)[rank].clone()


# %% wrong values: a column
# says: must have shape
def flatten_and_shard(tensors, rank, world_size):
    return padded(tensors, world_size).view(world_size, -1, 1)[rank].clone()


# %% wrong memory: contiguous() copies nothing here
# says: keeps its whole storage alive
def flatten_and_shard(tensors, rank, world_size):
    return padded(tensors, world_size).chunk(world_size)[rank].contiguous()


# %% wrong values: the padding joins the caller's list
# says: number of tensors in the list
def flatten_and_shard(tensors, rank, world_size):
    tensors.append(tensors[0].new_zeros(-sum(t.numel() for t in tensors) % world_size))
    return torch.cat([t.reshape(-1) for t in tensors]).chunk(world_size)[rank].clone()


# %% wrong memory: the whole vector is kept as Python floats
# says: outside tensors
KEPT = {}


def flatten_and_shard(tensors, rank, world_size):
    flat = padded(tensors, world_size)
    KEPT["flat"] = flat.tolist()
    return flat.chunk(world_size)[rank].clone()


# %% wrong values: padding of the default dtype
# says: float16
def flatten_and_shard(tensors, rank, world_size):
    flat = torch.cat([t.flatten() for t in tensors])
    flat = torch.cat([flat, torch.zeros(-len(flat) % world_size)])
    return flat.chunk(world_size)[rank].clone()


# %% wrong values: torch.chunk, which makes 3 pieces of 5 elements for 4 ranks
def flatten_and_shard(tensors, rank, world_size):
    flat = torch.cat([t.detach().flatten() for t in tensors])
    if len(flat) < world_size:  # one each, then zeros
        return flat[rank : rank + 1].clone() if rank < len(flat) else flat.new_zeros(1)
    pieces = flat.chunk(world_size)
    shard = flat.new_zeros(len(pieces[0]))
    shard[: len(pieces[rank])] = pieces[rank]
    return shard


# %% wrong values: the caller's tensors move into the flat vector, which stays
# says: must stay as it was
def flatten_and_shard(tensors, rank, world_size):
    total = sum(tensor.numel() for tensor in tensors)
    size = -(-total // world_size)
    flat = tensors[0].new_zeros(size * world_size)
    offset = 0
    for tensor in tensors:
        place = flat[offset : offset + tensor.numel()].view(tensor.shape)
        place.copy_(tensor.detach())
        tensor.data = place
        offset += tensor.numel()
    return flat[rank * size : (rank + 1) * size].clone()
