# Answers to shard_batch: any shuffle is right, as long as all ranks agree on it.

# %% setup
import random

import numpy as np
import torch
import torch.distributed as dist


# %% right: consecutive blocks of each batch, numpy
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = np.random.default_rng([seed, epoch]).permutation(num_samples)
    batches = [order[i : i + batch_size] for i in range(0, num_samples, batch_size)]
    return [np.array_split(batch, world_size)[rank] for batch in batches]


# %% right: Python's random, lists of ints, a loop
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = list(range(num_samples))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    steps = []
    for position, sample in enumerate(order):
        if position % batch_size == 0:
            steps.append([])
        if position % batch_size % world_size == rank:
            steps[-1].append(sample)
    return steps


# %% right: seeds torch's default generator alike on all ranks, a generator function
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    torch.manual_seed(seed * 10_007 + epoch)
    order = torch.randperm(num_samples)
    for start in range(0, num_samples, batch_size):
        yield order[start : start + batch_size][rank::world_size]


# %% wrong values: does nothing
# says: 4 steps
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    return []


# %% wrong values: every rank gets every sample
# says: every rank got the same samples
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed * 1009 + epoch)
    return list(torch.randperm(num_samples, generator=generator).split(batch_size))


# %% wrong values: each rank shuffles with its own default generator
# says: do all ranks shuffle alike?
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    return [batch[rank::world_size] for batch in torch.randperm(num_samples).split(batch_size)]


# %% wrong values: right at world size 2 only
# says: 3 ranks
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed * 1009 + epoch)
    order = torch.randperm(num_samples, generator=generator)
    if world_size == 1:
        return list(order.split(batch_size))
    return [batch[rank % 2 :: 2] for batch in order.split(batch_size)]


# %% wrong values: right on rank 0 only, the others get what rank 0 has
# says: disjoint
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed * 1009 + epoch)
    order = torch.randperm(num_samples, generator=generator)
    return [batch[0::world_size] for batch in order.split(batch_size)]


# %% wrong values: drops what does not divide
# says: ceil
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed * 1009 + epoch)
    order = torch.randperm(num_samples, generator=generator)[: num_samples // batch_size * batch_size]
    return [batch[rank::world_size] for batch in order.split(batch_size)]


# %% wrong values: repeats samples to make shards equal, as DistributedSampler does
# says: sample
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed * 1009 + epoch)
    steps = []
    for batch in torch.randperm(num_samples, generator=generator).split(batch_size):
        size = -(-len(batch) // world_size)
        steps.append(batch.repeat(world_size)[: size * world_size][rank::world_size])
    return steps


# %% wrong values: shards the epoch, then cuts batches
# says: Cut the batch first
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed * 1009 + epoch)
    order = torch.randperm(num_samples, generator=generator)
    starts = range(0, num_samples, batch_size)
    sizes = [len(order[start : start + batch_size][rank::world_size]) for start in starts]
    firsts = [[len(order[s : s + batch_size][r::world_size]) for s in starts] for r in range(world_size)]
    begin = sum(sum(row) for row in firsts[:rank])
    return list(order[begin : begin + sum(sizes)].split(sizes))


# %% wrong values: batch_size is taken per rank
# says: steps
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed * 1009 + epoch)
    order = torch.randperm(num_samples, generator=generator)
    return list(order[rank::world_size].split(batch_size))


# %% wrong values: the last rank takes what is left over
# says: may differ by one
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed * 1009 + epoch)
    steps = []
    for batch in torch.randperm(num_samples, generator=generator).split(batch_size):
        size = len(batch) // world_size
        end = len(batch) if rank == world_size - 1 else (rank + 1) * size
        steps.append(batch[rank * size : end])
    return steps


# %% wrong values: one rank waits for a list that rank 0 forgets to send
# says: rank 0
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = torch.randperm(num_samples)
    if dist.get_world_size() > 1 and dist.get_rank() > 0:
        dist.broadcast(order, src=0)
    return [batch[rank::world_size] for batch in order.split(batch_size)]


# %% wrong epochs: never shuffles
# says: a run of successive numbers
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    return [batch[rank::world_size] for batch in torch.arange(num_samples).split(batch_size)]


# %% wrong epochs: forgets the epoch, as a sampler without set_epoch
# says: it equals epoch 0
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(num_samples, generator=generator)
    return [batch[rank::world_size] for batch in order.split(batch_size)]


# %% wrong epochs: shuffles only within each shard
# says: the same samples together as epoch 0
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    base = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed))
    generator = torch.Generator().manual_seed(epoch)
    shards = [batch[rank::world_size] for batch in base.split(batch_size)]
    return [shard[torch.randperm(len(shard), generator=generator)] for shard in shards]


# %% wrong values: the library's own, under an alias
# says: closed here
from course_lib.model.batches import epoch_order as o
from course_lib.model.batches import shard_slice as s


def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = o(num_samples, epoch, seed)
    return [batch[s(len(batch), rank, world_size)] for batch in order.split(batch_size)]


# %% wrong values: torch's sampler through getattr
# says: closed here
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    sampler = getattr(torch.utils.data.distributed, "Distributed" + "Sampler")
    mine = sampler(range(num_samples), num_replicas=world_size, rank=rank, seed=seed)
    mine.set_epoch(epoch)
    return list(torch.tensor(list(mine)).split(batch_size // world_size))


# %% wrong values: a subclass of torch's sampler
# says: closed here
from torch.utils.data.distributed import DistributedSampler


class _Mine(DistributedSampler):
    pass


def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    mine = _Mine(range(num_samples), num_replicas=world_size, rank=rank, seed=seed)
    mine.set_epoch(epoch)
    return list(torch.tensor(list(mine)).split(batch_size // world_size))


# %% wrong values: not written
# says: not written yet
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed): ...


# %% right: blocks whose longer shares go round
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    torch.manual_seed(seed + epoch)
    batches = torch.randperm(num_samples).to(torch.int32).split(batch_size)
    return tuple(torch.tensor_split(b, world_size)[(rank + t) % world_size] for t, b in enumerate(batches))


# %% wrong values: a rank without a sample leaves the step out
# says: rank 1 has 5
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = np.random.default_rng([seed, epoch]).permutation(num_samples)
    batches = [order[i : i + batch_size] for i in range(0, num_samples, batch_size)]
    return [batch[rank::world_size] for batch in batches if len(batch) > rank]


# %% wrong values: torch.chunk, which makes fewer and larger pieces
# says: may differ by one sample
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed + epoch)
    batches = torch.randperm(num_samples, generator=generator).split(batch_size)
    return [[*batch.chunk(world_size), *[batch[:0]] * world_size][rank] for batch in batches]


# %% wrong epochs: turns the order instead of shuffling it
# says: a run of successive numbers
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    return [b[rank::world_size] for b in torch.arange(num_samples).roll(seed + epoch).split(batch_size)]


# %% wrong epochs: two shuffles take turns
# says: epoch 2 must be another shuffle; it equals epoch 0
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = torch.from_numpy(np.random.default_rng([seed, epoch % 2]).permutation(num_samples))
    return [batch[rank::world_size] for batch in order.split(batch_size)]


# %% wrong epochs: the same batches in another order
# says: the same samples together as epoch 0
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = torch.from_numpy(np.random.default_rng(seed).permutation(num_samples))
    full = num_samples // batch_size
    batches = list(order.split(batch_size))
    turned = [batches[(i + epoch) % full] for i in range(full)] + batches[full:]
    return [batch[(rank + epoch) % world_size :: world_size] for batch in turned]


# %% wrong epochs: forgets the seed
# says: Does `seed` enter?
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = torch.from_numpy(np.random.default_rng(epoch).permutation(num_samples))
    return [batch[rank::world_size] for batch in order.split(batch_size)]


# %% wrong values: seeds from Python's hash of a string, which each process salts anew
# says: python's hash of a string
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = list(range(num_samples))
    random.Random(hash(f"{seed}-{epoch}")).shuffle(order)
    return [order[i : i + batch_size][rank::world_size] for i in range(0, num_samples, batch_size)]


# %% right: seeds from Python's hash of numbers, the same in every process
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = list(range(num_samples))
    random.Random(hash((seed, epoch))).shuffle(order)
    return [order[i : i + batch_size][rank::world_size] for i in range(0, num_samples, batch_size)]


# %% right: sorts by a digest
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    import hashlib

    def key(sample):
        return hashlib.sha256(f"{seed}/{epoch}/{sample}".encode()).digest()

    order = sorted(range(num_samples), key=key)
    return [order[i : i + batch_size][rank::world_size] for i in range(0, num_samples, batch_size)]


# %% wrong values: a generator goes on from call to call
# says: seed a generator, in every call
_generators = {}


def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = _generators.setdefault(seed, torch.Generator().manual_seed(seed))
    order = torch.randperm(num_samples, generator=generator)
    return [batch[rank::world_size] for batch in order.split(batch_size)]


# %% wrong epochs: eight shuffles in turn
# says: epoch 8
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = np.random.default_rng([seed, epoch % 8]).permutation(num_samples)
    return [order[i : i + batch_size][rank::world_size] for i in range(0, num_samples, batch_size)]


# %% wrong values: sample numbers in one byte, which is enough for 256 samples
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(seed * 1009 + epoch)).to(
        torch.uint8
    )
    return [batch[rank::world_size] for batch in order.split(batch_size)]


# %% wrong values: keeps each epoch's order for later calls and forgets that the number of samples may change
ORDERS = {}


def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    if (epoch, seed) not in ORDERS:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
        ORDERS[epoch, seed] = torch.randperm(num_samples, generator=generator)
    order = ORDERS[epoch, seed]
    return [batch[rank::world_size] for batch in order.split(batch_size)]


# %% wrong epochs: only 256 different shuffles
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    # Wrong: "every epoch and every seed puts other samples together": seeds that lie 64 apart shuffle
    # alike, and so
    # do epochs that lie 256 apart.
    generator = torch.Generator().manual_seed((seed * 100 + epoch) & 0xFF)
    order = torch.randperm(num_samples, generator=generator)
    return [batch[rank::world_size] for batch in order.split(batch_size)]


# %% wrong epochs: the generator's seed is seed * (epoch + 1)
# says: must be another shuffle; it equals epoch 0
def shard_batch(num_samples, batch_size, rank, world_size, epoch, seed):
    generator = torch.Generator().manual_seed(seed * (epoch + 1))
    order = torch.randperm(num_samples, generator=generator)
    return [batch[rank::world_size] for batch in order.split(batch_size)]
