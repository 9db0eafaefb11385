# Answers to ring_reduce_scatter: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: each way to send chunks is a loop of its own.

# %% setup
import torch
import torch.distributed as dist


def pass_on(outgoing, incoming, group):
    """Send to the next rank of the ring while the one before fills `incoming`."""
    ring, me = dist.get_process_group_ranks(group), dist.get_rank(group)
    works = [
        dist.irecv(incoming, ring[me - 1], group=group),
        dist.isend(outgoing, ring[(me + 1) % len(ring)], group=group),
    ]
    for work in works:
        work.wait()


def place(group):
    return dist.get_rank(group), dist.get_world_size(group)


# %% right: sums in place in a copy, a view of it is returned
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.flatten().clone().tensor_split(n)
    for step in range(n - 1):
        received = torch.empty_like(chunks[(me - step - 2) % n])
        pass_on(chunks[(me - step - 1) % n], received, group)
        chunks[(me - step - 2) % n].add_(received)
    return chunks[me]


# %% right: every chunk straight to its owner, n-1 messages at once
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    ring = dist.get_process_group_ranks(group)
    chunks = tensor.flatten().tensor_split(n)
    others = [p for p in range(n) if p != me]
    parts = {p: torch.empty_like(chunks[me]) for p in others}
    works = [dist.irecv(parts[p], ring[p], group=group) for p in others]
    works += [dist.isend(chunks[p], ring[p], group=group) for p in others]
    for work in works:
        work.wait()
    return sum(parts.values(), start=chunks[me].clone())


# %% right: round the other way, own cutting, empty messages left out
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    ring, flat = dist.get_process_group_ranks(group), tensor.reshape(-1)
    size, more = divmod(flat.numel(), n)
    start = [c * size + min(c, more) for c in range(n + 1)]
    chunks = [flat[start[c] : start[c + 1]] for c in range(n)]
    total = chunks[(me + 1) % n].clone()
    for step in range(2, n + 1):
        mine = chunks[(me + step) % n]
        received, works = torch.empty_like(mine), []
        if total.numel():
            works.append(dist.isend(total, ring[me - 1], group=group))
        if received.numel():
            works.append(dist.irecv(received, ring[(me + 1) % n], group=group))
        for work in works:
            work.wait()
        total = received + mine
    return total


# %% wrong values: does nothing
# says: nothing was communicated
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    return tensor.reshape(-1).tensor_split(n)[me].clone()


# %% wrong values: right at world size 2 only
# says: 4 ranks
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.reshape(-1).tensor_split(n)
    if n == 1:
        return chunks[0].clone()
    received = torch.empty_like(chunks[me])
    pass_on(chunks[(me + 1) % n][: received.numel()].clone(), received, group)
    return received + chunks[me]


# %% wrong values: only one step of the ring
# says: only the chunk of the rank before was added
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    if n == 1:
        return tensor.flatten()
    everything = torch.empty_like(tensor)
    pass_on(tensor, everything, group)
    return (tensor + everything).flatten().tensor_split(n)[me]


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.reshape(-1).tensor_split(n)
    total = chunks[me - 1].clone()
    for step in range(2, n + 1):
        received = torch.empty_like(chunks[(me - step) % n])
        pass_on(total, received, group)
        total = received + chunks[(me - step) % n]
    return total if me == 0 else chunks[me]


# %% wrong values: each rank ends with its neighbour's chunk
# says: rank 0
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.reshape(-1).tensor_split(n)
    total = chunks[me].clone()
    for step in range(1, n):
        received = torch.empty_like(chunks[(me - step) % n])
        pass_on(total, received, group)
        total = received + chunks[(me - step) % n]
    return total


# %% wrong values: means instead of sums
# says: too small by exactly
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.reshape(-1).tensor_split(n)
    total = chunks[me - 1].clone()
    for step in range(2, n + 1):
        received = torch.empty_like(chunks[(me - step) % n])
        pass_on(total, received, group)
        total = received + chunks[(me - step) % n]
    return total / n


# %% wrong values: only sizes that n divides
# says: 3 ranks, 10 elements
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.reshape(-1)[: tensor.numel() // n * n].tensor_split(n)
    total = chunks[me - 1].clone()
    for step in range(2, n + 1):
        received = torch.empty_like(chunks[(me - step) % n])
        pass_on(total, received, group)
        total = received + chunks[(me - step) % n]
    return total


# %% wrong values: adds into the caller's tensor
# says: must stay as it was
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.view(-1).tensor_split(n)
    for step in range(n - 1):
        received = torch.empty_like(chunks[(me - step - 2) % n])
        pass_on(chunks[(me - step - 1) % n], received, group)
        chunks[(me - step - 2) % n].add_(received)
    return chunks[me].clone()


# %% wrong values: every rank sends first
# says: a deadlock
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    ring = dist.get_process_group_ranks(group)
    chunks = tensor.reshape(-1).tensor_split(n)
    total = chunks[me - 1].clone()
    for step in range(2, n + 1):
        received = torch.empty_like(chunks[(me - step) % n])
        dist.send(total, ring[(me + 1) % n], group=group)
        dist.recv(received, ring[me - 1], group=group)
        total = received + chunks[(me - step) % n]
    return total


# %% wrong values: one rank leaves after the first step
# says: rank
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.reshape(-1).tensor_split(n)
    total = chunks[me - 1].clone()
    for step in range(2, n + 1):
        received = torch.empty_like(chunks[(me - step) % n])
        pass_on(total, received, group)
        total = received + chunks[(me - step) % n]
        if me == 1 and n > 2:
            return total
    return total


# %% wrong bytes: whole tensors go round
# says: whole tensors instead of chunks
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    total, travelling = tensor.clone(), tensor
    for _ in range(n - 1):
        received = torch.empty_like(tensor)
        pass_on(travelling, received, group)
        total += received
        travelling = received
    return total.flatten().tensor_split(n)[me].clone()


# %% wrong bytes: an all_reduce of which a chunk is kept
# says: an all_reduce of which a chunk is kept
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.flatten().clone().tensor_split(n)
    for step in range(n - 1):
        received = torch.empty_like(chunks[(me - step - 2) % n])
        pass_on(chunks[(me - step - 1) % n], received, group)
        chunks[(me - step - 2) % n].add_(received)
    for step in range(n - 1):
        pass_on(chunks[(me - step) % n], chunks[(me - step - 1) % n], group)
    return chunks[me]


# %% wrong bytes: rank 0 adds everything and hands out the chunks
# says: whole tensors instead of chunks
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    ring = dist.get_process_group_ranks(group)
    if me:
        mine = torch.empty_like(tensor.flatten().tensor_split(n)[me])
        dist.send(tensor, ring[0], group=group)
        dist.recv(mine, ring[0], group=group)
        return mine
    total = tensor.clone()
    for other in ring[1:]:
        received = torch.empty_like(tensor)
        dist.recv(received, other, group=group)
        total += received
    chunks = total.flatten().tensor_split(n)
    for chunk, other in zip(chunks[1:], ring[1:]):
        dist.send(chunk, other, group=group)
    return chunks[0]


# %% wrong values: uses the closed call
# says: is closed here
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = [chunk.clone() for chunk in tensor.flatten().tensor_split(n)]
    out = torch.empty_like(chunks[me])
    dist.reduce_scatter(out, chunks, group=group)
    return out


# %% wrong values: an operator of torch instead of the function
# says: is closed here
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    total = tensor.clone()
    (group or dist.group.WORLD).allreduce([total]).wait()
    return total.flatten().tensor_split(n)[me]


# %% wrong bytes: float64 on the wire
# says: Float64 on the wire
import torch
import torch.distributed as dist


def ring_reduce_scatter(tensor, group=None):
    ring = dist.get_process_group_ranks(group)
    n, me = len(ring), dist.get_rank(group)
    chunks = tensor.reshape(-1).double().tensor_split(n)
    acc = chunks[me - 1].clone()
    for s in range(1, n):
        mine = chunks[(me - 1 - s) % n]
        got = torch.empty_like(mine)
        a = dist.isend(acc, ring[(me + 1) % n], group)
        dist.recv(got, ring[me - 1], group)
        a.wait()
        acc = got + mine
    return acc.to(tensor.dtype)


# %% wrong values: sums pile up from call to call
# says: called again
# says: keep nothing between calls
_sums = {}


def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.reshape(-1).tensor_split(n)
    partial = chunks[me - 1].clone()
    for step in range(2, n + 1):
        received = torch.empty_like(chunks[me - step])
        pass_on(partial, received, group)
        partial = received + chunks[me - step]
    _sums[partial.shape] = _sums.get(partial.shape, 0) + partial
    return _sums[partial.shape].clone()


# %% wrong values: adds before it has waited
# says: must equal
def ring_reduce_scatter(tensor, group=None):
    ring, (me, n) = dist.get_process_group_ranks(group), place(group)
    chunks = tensor.reshape(-1).tensor_split(n)
    partial = chunks[me - 1].clone()
    for step in range(2, n + 1):
        received = torch.zeros_like(chunks[me - step])
        works = [dist.irecv(received, ring[me - 1], group=group)]
        early = received + chunks[me - step]
        works.append(dist.isend(partial, ring[(me + 1) % n], group=group))
        for work in works:
            work.wait()
        partial = early
    return partial


# %% wrong bytes: each chunk in two messages
# says: send each chunk whole
def ring_reduce_scatter(tensor, group=None):
    me, n = place(group)
    chunks = tensor.reshape(-1).tensor_split(n)
    partial = chunks[me - 1].clone()
    for step in range(2, n + 1):
        received = torch.empty_like(chunks[me - step])
        for outgoing, incoming in zip(partial.tensor_split(2), received.tensor_split(2)):
            pass_on(outgoing, incoming, group)
        partial = received.add_(chunks[me - step])
    return partial
