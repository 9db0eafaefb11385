# Answers to ring_shift: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: who sends first, what travels and what is kept: each is a loop of its own.

# %% setup
import torch
import torch.distributed as dist


def ring_of(group):
    return dist.get_process_group_ranks(group), dist.get_rank(group)


# %% right: batch_isend_irecv
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    received = tensor.clone()
    if len(ring) > 1:
        send = dist.P2POp(dist.isend, tensor, ring[(me + 1) % len(ring)], group)
        receive = dist.P2POp(dist.irecv, received, ring[me - 1], group)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
    return received


# %% right: blocking calls, even places send first
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    if len(ring) == 1:
        return tensor
    after, before = ring[(me + 1) % len(ring)], ring[me - 1]
    received = torch.zeros_like(tensor)
    if me % 2 == 0:
        dist.send(tensor, after, group=group)
        dist.recv(received, before, group=group)
    else:
        dist.recv(received, before, group=group)
        dist.send(tensor, after, group=group)
    return received


# %% right: peers by their place in the group, in pieces, the receive blocks
def ring_shift(tensor, group=None):
    me, n = dist.get_rank(group), dist.get_world_size(group)
    received = torch.empty_like(tensor)
    if n == 1:
        return received.copy_(tensor)
    pieces = tensor.view(-1).split(4096)
    works = [dist.isend(piece, group=group, group_dst=(me + 1) % n) for piece in pieces]
    for piece in received.view(-1).split(4096):
        dist.recv(piece, group=group, group_src=(me - 1) % n)
    for work in works:
        work.wait()
    return received


# %% wrong values: does nothing
# says: nothing was communicated
def ring_shift(tensor, group=None):
    return tensor.clone()


# %% wrong values: every rank sends first
# says: wait for each other for ever
# says: in send
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    if len(ring) == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    dist.send(tensor, ring[(me + 1) % len(ring)], group=group)
    dist.recv(received, ring[me - 1], group=group)
    return received


# %% wrong values: deadlock for large messages only
# says: 150,000 elements
# says: a deadlock
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    if len(ring) == 1:
        return tensor.clone()
    after, before = ring[(me + 1) % len(ring)], ring[me - 1]
    received = torch.empty_like(tensor)
    if tensor.numel() > 1000:
        dist.send(tensor, after, group=group)
        dist.recv(received, before, group=group)
        return received
    works = [dist.isend(tensor, after, group=group), dist.irecv(received, before, group=group)]
    for work in works:
        work.wait()
    return received


# %% wrong values: every rank receives first
# says: in recv
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    if len(ring) == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    dist.recv(received, ring[me - 1], group=group)
    dist.send(tensor, ring[(me + 1) % len(ring)], group=group)
    return received


# %% wrong values: the wrong way round
# says: wrong way round
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    if len(ring) == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    works = [
        dist.isend(tensor, ring[me - 1], group=group),
        dist.irecv(received, ring[(me + 1) % len(ring)], group=group),
    ]
    for work in works:
        work.wait()
    return received


# %% wrong values: right at world size 2 only
# says: 3 ranks
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    received = tensor.clone()
    if len(ring) > 1 and me < 2:
        other = ring[1 - me]
        works = [dist.isend(tensor, other, group=group), dist.irecv(received, other, group=group)]
        for work in works:
            work.wait()
    return received


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    received = tensor.clone()
    if len(ring) > 1 and me == 0:
        dist.recv(received, ring[-1], group=group)
    if len(ring) > 1 and me == len(ring) - 1:
        dist.send(tensor, ring[0], group=group)
    return received


# %% wrong values: places in the group taken for global ranks
# says: groups [0, 2] and [1, 3]
def ring_shift(tensor, group=None):
    me, n = dist.get_rank(group), dist.get_world_size(group)
    received = tensor.clone()
    if n > 1:
        works = [
            dist.isend(tensor, (me + 1) % n, group=group),
            dist.irecv(received, (me - 1) % n, group=group),
        ]
        for work in works:
            work.wait()
    return received


# %% wrong values: waits after it has read
# says: must equal
class _Kept:
    works = []


def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    if len(ring) == 1:
        return tensor.clone()
    received = torch.zeros_like(tensor)
    copy = torch.zeros_like(tensor)
    _Kept.works += [dist.isend(tensor, ring[(me + 1) % len(ring)], group=group)]
    _Kept.works += [dist.irecv(copy, ring[me - 1], group=group)]
    received.copy_(copy)
    for work in _Kept.works:
        work.wait()
    return received


# %% wrong values: one rank skips its send
# says: rank 0
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    if len(ring) == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    work = dist.irecv(received, ring[me - 1], group=group)
    if me or len(ring) < 3:
        dist.isend(tensor, ring[(me + 1) % len(ring)], group=group).wait()
    work.wait()
    return received


# %% wrong values: receives into the input
# says: must stay as it was
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    if len(ring) > 1:
        outgoing = tensor.clone()
        works = [
            dist.isend(outgoing, ring[(me + 1) % len(ring)], group=group),
            dist.irecv(tensor, ring[me - 1], group=group),
        ]
        for work in works:
            work.wait()
    return tensor


# %% wrong bytes: sends its tensor to everyone
# says: only the next rank needs it
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    everyone = [torch.empty_like(tensor) for _ in ring]
    everyone[me].copy_(tensor)
    others = [place for place in range(len(ring)) if place != me]
    works = [dist.irecv(everyone[place], ring[place], group=group) for place in others]
    works += [dist.isend(tensor, ring[place], group=group) for place in others]
    for work in works:
        work.wait()
    return everyone[me - 1]


# %% wrong values: gathers with the closed call, under an alias
# says: is closed here
gather_all = dist.all_gather


def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    everyone = [torch.empty_like(tensor) for _ in ring]
    gather_all(everyone, tensor, group=group)
    return everyone[me - 1]


# %% wrong values: imports the library's own
# says: is closed here
def ring_shift(tensor, group=None):
    from course_lib.comm import p2p

    return p2p.ring_shift(tensor, group)


# %% wrong values: getattr reaches the closed call
# says: is closed here
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    everyone = [torch.empty_like(tensor) for _ in ring]
    getattr(dist, "all_" + "gather")(everyone, tensor, group=group)
    return everyone[me - 1]


# %% wrong values: receives float64 whatever was sent
# says: their dtype differs
import torch
import torch.distributed as dist


def ring_shift(tensor, group=None):
    ring = dist.get_process_group_ranks(group)
    n, me = len(ring), dist.get_rank(group)
    if n == 1:
        return tensor.clone()
    out = torch.empty(tensor.shape, dtype=torch.float64)
    s = dist.isend(tensor, ring[(me + 1) % n], group)
    r = dist.irecv(out, ring[me - 1], group)
    s.wait()
    r.wait()
    return out


# %% wrong values: through a file
# says: through torch.distributed only
import os
import tempfile

import torch
import torch.distributed as dist


def ring_shift(tensor, group=None):
    ring = dist.get_process_group_ranks(group)
    n, me = len(ring), dist.get_rank(group)
    d = tempfile.gettempdir()
    tag = "-".join(map(str, ring))
    ident = os.environ.get("MASTER_PORT", "x")
    p = f"{d}/shift-{os.getppid()}-{ident}-{tag}-{tensor.numel()}-{me}"
    torch.save(tensor, p + ".t")
    os.rename(p + ".t", p)
    dist.barrier(group)
    q = f"{d}/shift-{os.getppid()}-{ident}-{tag}-{tensor.numel()}-{(me - 1) % n}"
    return torch.load(q)


# %% wrong values: through the store
# says: through torch.distributed only
import pickle

import torch
import torch.distributed as dist


def ring_shift(tensor, group=None):
    ring = dist.get_process_group_ranks(group)
    n, me = len(ring), dist.get_rank(group)
    store = dist.distributed_c10d._get_default_store()
    key = f"s{ring}{tuple(tensor.shape)}"
    store.set(key + str(me), pickle.dumps(tensor))
    return pickle.loads(store.get(key + str((me - 1) % n)))


# %% wrong values: all_to_all_single with sizes
# says: torch.distributed.all_to_all_single is closed here
import torch
import torch.distributed as dist


def ring_shift(tensor, group=None):
    n, me = dist.get_world_size(group), dist.get_rank(group)
    out = torch.empty_like(tensor).view(-1)
    i = [0] * n
    o = [0] * n
    i[(me + 1) % n] = tensor.numel()
    o[me - 1] = tensor.numel()
    dist.all_to_all_single(out, tensor.view(-1), o, i, group=group)
    return out.view_as(tensor)


# %% wrong values: one buffer for every call
# says: a later call writes into what an earlier one returned
_buffers = {}


def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    if len(ring) == 1:
        return tensor.clone()
    received = _buffers.setdefault((tensor.shape, tensor.dtype), torch.empty_like(tensor))
    works = [
        dist.isend(tensor, ring[(me + 1) % len(ring)], group=group),
        dist.irecv(received, ring[me - 1], group=group),
    ]
    for work in works:
        work.wait()
    return received


# %% right: one rank breaks the circle, the others receive first
def ring_shift(tensor, group=None):
    ring, me = ring_of(group)
    if len(ring) == 1:
        return tensor
    received = torch.zeros_like(tensor)
    steps = [
        lambda: dist.send(tensor, ring[(me + 1) % len(ring)], group=group),
        lambda: dist.recv(received, ring[me - 1], group=group),
    ]
    for step in steps if me == 0 else reversed(steps):
        step()
    return received


# %% wrong values: two buffers that take turns, the third call overwrites what the first returned
_BUFFERS = {}


def ring_shift(tensor, group=None):
    ring, me = dist.get_process_group_ranks(group), dist.get_rank(group)
    n = len(ring)
    key = (tuple(tensor.shape), tensor.dtype)
    if key not in _BUFFERS:
        _BUFFERS[key] = [torch.empty_like(tensor), torch.empty_like(tensor)]
    _BUFFERS[key].reverse()
    received = _BUFFERS[key][0]
    if n == 1:
        return received.copy_(tensor)
    works = [
        dist.irecv(received, ring[me - 1], group=group),
        dist.isend(tensor, ring[(me + 1) % n], group=group),
    ]
    for work in works:
        work.wait()
    return received


# %% wrong values: returns before its own send has gone
# says: still in flight
_PENDING = []


def ring_shift(tensor, group=None):
    ring, me = dist.get_process_group_ranks(group), dist.get_rank(group)
    n = len(ring)
    if n == 1:
        return tensor.clone()
    received = torch.empty_like(tensor)
    work = dist.irecv(received, ring[me - 1], group=group)
    _PENDING.append(dist.isend(tensor, ring[(me + 1) % n], group=group))
    work.wait()
    return received


# %% wrong values: pool of three receive buffers
_POOL = {}


def ring_shift(tensor, group=None):
    # Wrong: "later calls leave what earlier ones returned": the fourth call of the same shape and dtype
    # overwrites what the first one returned (two calls in a row look right, three as well).
    ring = dist.get_process_group_ranks(group)
    me, n = dist.get_rank(group), len(ring)
    if n == 1:
        return tensor.clone()
    pool = _POOL.setdefault((dist.get_rank(), tuple(tensor.shape), tensor.dtype), [])
    received = pool.pop(0) if len(pool) == 3 else torch.empty_like(tensor)
    pool.append(received)
    works = [
        dist.isend(tensor, ring[(me + 1) % n], group=group),
        dist.irecv(received, ring[me - 1], group=group),
    ]
    for work in works:
        work.wait()
    return received
