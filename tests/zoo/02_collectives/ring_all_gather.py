# Answers to ring_all_gather: right ones in other styles, and wrong ones with the part each must lose.
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


def sizes_of(numel, n):
    return [numel // n + (c < numel % n) for c in range(n)]


# %% right: a list of chunks, put together at the end
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    sizes, chunks = sizes_of(numel, n), {me: chunk}
    for step in range(1, n):
        received = chunk.new_empty(sizes[(me - step) % n])
        pass_on(chunks[(me - step + 1) % n], received, group)
        chunks[(me - step) % n] = received
    return torch.cat([chunks[c] for c in range(n)])


# %% right: straight to everyone, all at once
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    ring = dist.get_process_group_ranks(group)
    full = chunk.new_zeros(numel)
    parts = full.tensor_split(n)
    parts[me].copy_(chunk)
    works = [dist.irecv(parts[p], ring[p], group=group) for p in range(n) if p != me]
    works += [dist.isend(chunk, ring[p], group=group) for p in range(n) if p != me]
    for work in works:
        work.wait()
    return full


# %% right: round the other way with blocking calls, even places first
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    ring = dist.get_process_group_ranks(group)
    full = chunk.new_zeros(numel)
    parts = full.tensor_split(n)
    parts[me][:] = chunk
    for step in range(n - 1):
        out, into = parts[(me + step) % n], parts[(me + step + 1) % n]
        calls = [
            lambda out=out: dist.send(out, ring[me - 1], group=group),
            lambda into=into: dist.recv(into, ring[(me + 1) % n], group=group),
        ]
        for call in calls if me % 2 else calls[::-1]:
            call()
    return full


# %% wrong values: does nothing
# says: must
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    full = chunk.new_zeros(numel)
    full.tensor_split(n)[me].copy_(chunk)
    return full


# %% wrong values: right at world size 2 only
# says: 4 ranks
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    full = chunk.new_zeros(numel)
    parts = full.tensor_split(n)
    parts[me].copy_(chunk)
    if n > 1:
        pass_on(parts[me], parts[me - 1], group)
    return full


# %% wrong values: chunks in the order of arrival
# says: in the order in which they arrive
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    sizes, chunks = sizes_of(numel, n), [chunk]
    for step in range(1, n):
        received = chunk.new_empty(sizes[(me - step) % n])
        pass_on(chunks[-1], received, group)
        chunks.append(received)
    return torch.cat(chunks)


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    full = chunk.new_zeros(numel)
    parts = full.tensor_split(n)
    parts[me].copy_(chunk)
    for step in range(n - 1):
        pass_on(parts[(me - step) % n], parts[(me - step - 1) % n], group)
    return full if me == 0 else full.zero_()


# %% wrong values: only sizes that n divides
# says: 3 ranks, 10 elements
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    parts = [torch.zeros_like(chunk) for _ in range(n)]
    parts[me] = chunk
    for step in range(n - 1):
        pass_on(parts[(me - step) % n], parts[(me - step - 1) % n], group)
    return torch.cat(parts)


# %% wrong values: sends its own chunk in every step
# says: wrong
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    size = -(-numel // n)
    padded = torch.cat([chunk, chunk.new_zeros(size - chunk.numel())])
    full = chunk.new_zeros(numel)
    parts = full.tensor_split(n)
    parts[me].copy_(chunk)
    for step in range(n - 1):
        received = torch.empty_like(padded)
        pass_on(padded, received, group)
        into = parts[(me - step - 1) % n]
        into.copy_(received[: into.numel()])
    return full


# %% wrong values: every rank receives first
# says: a deadlock
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    ring = dist.get_process_group_ranks(group)
    full = chunk.new_zeros(numel)
    parts = full.tensor_split(n)
    parts[me].copy_(chunk)
    for step in range(n - 1):
        dist.recv(parts[(me - step - 1) % n], ring[me - 1], group=group)
        dist.send(parts[(me - step) % n], ring[(me + 1) % n], group=group)
    return full


# %% wrong values: the last rank skips the last step
# says: rank
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    full = chunk.new_zeros(numel)
    parts = full.tensor_split(n)
    parts[me].copy_(chunk)
    for step in range(n - 1 - (me == n - 1 and n > 2)):
        pass_on(parts[(me - step) % n], parts[(me - step - 1) % n], group)
    return full


# %% wrong bytes: the whole tensor goes round
# says: whole tensors instead of chunks
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    full = chunk.new_zeros(numel)
    full.tensor_split(n)[me].copy_(chunk)
    travelling = full.clone()
    for _ in range(n - 1):
        received = torch.empty_like(full)
        pass_on(travelling, received, group)
        full += received
        travelling = received
    return full


# %% wrong bytes: rank 0 collects, then sends everything to each
# says: whole tensors instead of chunks
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    ring = dist.get_process_group_ranks(group)
    full = chunk.new_zeros(numel)
    parts = full.tensor_split(n)
    parts[me].copy_(chunk)
    if me:
        dist.send(chunk, ring[0], group=group)
        dist.recv(full, ring[0], group=group)
        return full
    for part, other in zip(parts[1:], ring[1:]):
        dist.recv(part, other, group=group)
    for other in ring[1:]:
        dist.send(full, other, group=group)
    return full


# %% wrong values: uses the closed call
# says: is closed here
def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    parts = [chunk.new_empty(size) for size in sizes_of(numel, n)]
    dist.all_gather(parts, chunk, group=group)
    return torch.cat(parts)


# %% wrong bytes: float64 on the wire
# says: Float64 on the wire
import torch
import torch.distributed as dist


def ring_all_gather(chunk, numel, group=None):
    ring = dist.get_process_group_ranks(group)
    n, me = len(ring), dist.get_rank(group)
    full = torch.zeros(numel, dtype=torch.float64)
    parts = full.tensor_split(n)
    parts[me].copy_(chunk)
    for s in range(n - 1):
        a = dist.isend(parts[(me - s) % n].contiguous(), ring[(me + 1) % n], group)
        dist.recv(parts[(me - s - 1) % n], ring[me - 1], group)
        a.wait()
    return full.to(chunk.dtype)


# %% wrong values: one result for every call
# says: a later call writes into what an earlier one returned
_results = {}


def ring_all_gather(chunk, numel, group=None):
    me, n = place(group)
    full = _results.setdefault((numel, chunk.dtype), chunk.new_empty(numel))
    chunks = full.tensor_split(n)
    chunks[me].copy_(chunk)
    for step in range(n - 1):
        pass_on(chunks[(me - step) % n], chunks[(me - step - 1) % n], group)
    return full


# %% right: half of the chunks one way round, half the other
def ring_all_gather(chunk, numel, group=None):
    ring, (me, n) = dist.get_process_group_ranks(group), place(group)
    sizes, found = sizes_of(numel, n), {me: chunk}
    for step in range(1, n // 2 + 1):
        works, came = [], {}
        for way in (1, -1)[: 1 + (step <= (n - 1) // 2)]:
            came[(me - way * step) % n] = incoming = chunk.new_empty(sizes[(me - way * step) % n])
            outgoing = found[(me - way * (step - 1)) % n]
            works.append(dist.isend(outgoing, ring[(me + way) % n], group=group))
            works.append(dist.irecv(incoming, ring[(me - way) % n], group=group))
        for work in works:
            work.wait()
        found |= came
    return torch.cat([found[c] for c in range(n)])


# %% wrong values: gathered once a tensor, then remembered
def ring_all_gather(chunk, numel, group=None):
    # Wrong: "every rank returns the 1-D tensor whose chunks the ranks hold": a second call with the same
    # tensor
    # object returns what its chunks held at the first call, also if they were written in between.
    ring = dist.get_process_group_ranks(group)
    me, n = dist.get_rank(group), len(ring)
    label = (numel, tuple(ring))
    known = getattr(chunk, "_gathered", None)
    if known is not None and known[0] == label:
        return known[1].clone()
    full = chunk.new_empty(numel)
    parts = full.tensor_split(n)
    parts[me].copy_(chunk)
    for step in range(n - 1):
        works = [
            dist.isend(parts[(me - step) % n], ring[(me + 1) % n], group=group),
            dist.irecv(parts[(me - step - 1) % n], ring[me - 1], group=group),
        ]
        for work in works:
            work.wait()
    chunk._gathered = (label, full.clone())
    return full


# %% wrong values: the input becomes a view of the result
def ring_all_gather(chunk, numel, group=None):
    # Wrong: "`chunk` stays as it is", "the input stays as it was": to save its memory, chunk is pointed at
    # its
    # place in the result; whoever writes the result afterwards changes the input, and the memory the caller's
    # other views of chunk look at is no longer chunk's.
    ring = dist.get_process_group_ranks(group)
    me, n = dist.get_rank(group), len(ring)
    full = chunk.new_empty(numel)
    parts = full.tensor_split(n)
    parts[me].copy_(chunk)
    chunk.data = parts[me]
    for step in range(n - 1):
        works = [
            dist.isend(parts[(me - step) % n], ring[(me + 1) % n], group=group),
            dist.irecv(parts[(me - step - 1) % n], ring[me - 1], group=group),
        ]
        for work in works:
            work.wait()
    return full
