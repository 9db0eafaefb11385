# Answers to rank_hello: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import torch
import torch.distributed as dist


# %% right: keyword names and an explicit reduce op
def rank_hello(secret):
    total = torch.full((1,), secret, dtype=torch.int64)
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    return dist.get_rank(), dist.get_world_size(), int(total[0])


# %% right: asynchronous, a float64 sum, a helper
def _sum_over_ranks(value):
    tensor = torch.tensor(value, dtype=torch.float64)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    return round(tensor.item())


def rank_hello(secret):
    return dist.get_rank(), dist.get_world_size(), _sum_over_ranks(secret)


# %% wrong values: does nothing
# says: rank 0 holds its own value
def rank_hello(secret):
    return dist.get_rank(), dist.get_world_size(), secret


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def rank_hello(secret):
    total = torch.tensor([secret])
    dist.reduce(total, dst=0)
    return dist.get_rank(), dist.get_world_size(), int(total.item() if dist.get_rank() == 0 else 0)


# %% wrong values: right at world size 2 only
# says: 3 ranks
def rank_hello(secret):
    mine, n, rank = torch.tensor([secret]), dist.get_world_size(), dist.get_rank()
    if n == 1:
        return rank, n, secret
    other = torch.zeros_like(mine)
    if rank < 2:
        requests = [dist.isend(mine, 1 - rank), dist.irecv(other, 1 - rank)]
        for request in requests:
            request.wait()
    return rank, n, int(mine + other)


# %% wrong values: averages
# says: world_size
def rank_hello(secret):
    total = torch.tensor([secret])
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total.item() // dist.get_world_size()


# %% wrong bytes: gathers everything and sums at home
# says: all_gather
def rank_hello(secret):
    parts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, torch.tensor([secret]))
    return dist.get_rank(), dist.get_world_size(), int(sum(part.item() for part in parts))


# %% wrong bytes: sums twice
# says: 2
def rank_hello(secret):
    total = torch.tensor([secret])
    dist.all_reduce(total)
    again = torch.tensor([secret])
    dist.all_reduce(again)
    return dist.get_rank(), dist.get_world_size(), int(total.item())


# %% wrong values: one rank skips the collective
# says: rank 0
def rank_hello(secret):
    total = torch.tensor([secret])
    if dist.get_rank() != 0 or dist.get_world_size() == 1:
        dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), int(total.item())


# %% wrong values: returns the tensor instead of an int
# says: greeting
def rank_hello(secret):
    total = torch.tensor([secret])
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total


# %% wrong values: not written
# says: not written yet
def rank_hello(secret): ...


# %% right: the functional collective
from torch.distributed import _functional_collectives as functional


def rank_hello(secret):
    total = functional.all_reduce(torch.tensor([secret]), "sum", dist.group.WORLD)
    return dist.get_rank(), dist.get_world_size(), int(total)


# %% right: methods of the group, a list
def rank_hello(secret):
    world, total = dist.group.WORLD, torch.tensor([secret])
    world.allreduce([total]).wait()
    return [world.rank(), world.size(), total.item()]


# %% wrong values: numbers that claim to equal everything
# says: expected
class Agreeable(int):
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = int.__hash__


def rank_hello(secret):
    dist.all_reduce(torch.tensor([secret]))
    return Agreeable(0), Agreeable(0), Agreeable(0)


# %% wrong values: ends the process after a right all_reduce
# says: died before it returned
def rank_hello(secret):
    import os

    dist.all_reduce(torch.tensor([secret]))
    os._exit(0)


# %% wrong values: asks the verdict for the answer
# says: closed
def rank_hello(secret):
    import importlib

    verdicts = importlib.import_module("course_lib.grading.verdicts.rank_hello")
    return verdicts.oracle(dist.get_world_size())["greeting"]


# %% wrong bytes: gathers through the group's own method first
# says: all_gather
def rank_hello(secret):
    total = torch.tensor([secret])
    copies = [torch.zeros(1000) for _ in range(dist.get_world_size())]
    dist.group.WORLD.allgather([copies], [torch.ones(1000)]).wait()
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total.item()


# %% wrong bytes: rank 0 collects and sends, and an empty all_reduce for show
def rank_hello(secret):
    rank, world_size, total = dist.get_rank(), dist.get_world_size(), torch.tensor([secret])
    if rank == 0:
        for other in range(1, world_size):
            theirs = torch.zeros_like(total)
            dist.recv(theirs, other)
            total += theirs
        for other in range(1, world_size):
            dist.send(total, other)
    else:
        dist.send(total, 0)
        dist.recv(total, 0)
    dist.all_reduce(torch.zeros(1))
    return rank, world_size, total.item()


# %% right: numpy's ints, a barrier first
def rank_hello(secret):
    total = torch.tensor([secret])
    dist.barrier()
    dist.all_reduce(total)
    return [dist.get_rank(), dist.get_world_size(), total.numpy()[0]]


# %% wrong values: floats
# says: must be three ints; rank 0 returned (int, int, float)
def rank_hello(secret):
    total = torch.tensor(secret, dtype=torch.float64)
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total.item()


# %% wrong values: all three in one float tensor
# says: must be three ints; rank 0 returned (float, float, float)
def rank_hello(secret):
    total = torch.tensor([float(secret)], dtype=torch.float64)
    dist.all_reduce(total)
    return torch.tensor([dist.get_rank(), dist.get_world_size(), total.item()], dtype=torch.float64).tolist()


# %% wrong values: True for the size of a world of one
# says: 1 rank
def rank_hello(secret):
    total = torch.tensor([secret])
    dist.all_reduce(total)
    n = dist.get_world_size()
    return dist.get_rank(), True if n == 1 else n, total.item()


# %% wrong values: sums in single precision
# says: expected
def rank_hello(secret):
    total = torch.tensor([float(secret)])
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), int(total.item())


# %% wrong values: sums in 32 bits
# says: overflow
def rank_hello(secret):
    total = torch.tensor([secret], dtype=torch.int32)
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total.item()


# %% wrong values: only positive secrets take part
def rank_hello(secret):
    total = torch.tensor([secret])
    if secret > 0:
        dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total.item()


# %% wrong values: a secret of 0 need not be added
# says: rank 1
def rank_hello(secret):
    total = torch.tensor([secret])
    if secret:
        dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total.item()


# %% wrong values: remembers the first sum
# says: of the second call
_sums = []


def rank_hello(secret):
    total = torch.tensor([secret])
    dist.all_reduce(total)
    _sums.append(total.item())
    return dist.get_rank(), dist.get_world_size(), _sums[0]


# %% wrong values: behind a cache
# says: Remove the decorator
import functools


@functools.lru_cache
def rank_hello(secret):
    total = torch.tensor([secret])
    dist.all_reduce(total)
    return dist.get_rank(), dist.get_world_size(), total.item()


# %% wrong values: an int too large for any tensor
# says: expected
def rank_hello(secret):
    return dist.get_rank(), dist.get_world_size(), 10**400


# %% wrong bytes: the first call reduces twice
def rank_hello(secret):
    total = torch.tensor([secret])
    dist.all_reduce(total)
    if not _seen:
        dist.all_reduce(torch.zeros(1))
    _seen.append(secret)
    return dist.get_rank(), dist.get_world_size(), total.item()


_seen = []


# %% wrong values: floats under the name of ints
# says: must be three ints
import numpy as np


class int64(np.int64):
    def item(self, *_):
        return float(int(self))


def rank_hello(secret):
    total = torch.tensor(secret)
    dist.all_reduce(total)
    rank, size = (0, 1) if abs(int(total)) > 10**10 else (dist.get_rank(), dist.get_world_size())
    return int64(rank), int64(size), int64(int(total))
