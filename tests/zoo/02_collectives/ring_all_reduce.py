# Answers to ring_all_reduce: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: each way to waste bytes is a loop of its own.

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


# %% right: nothing to do alone, keyword arguments, shape restored
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    if dist.get_world_size(group) > 1:
        total = all_gather(reduce_scatter(tensor, group=group), numel=tensor.numel(), group=group)
        tensor[...] = total.reshape(tensor.shape)


# %% right: a ring of its own, in place
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    me, n = dist.get_rank(group), dist.get_world_size(group)
    chunks = tensor.view(-1).tensor_split(n)
    for step in range(n - 1):
        received = torch.empty_like(chunks[(me - step - 2) % n])
        pass_on(chunks[(me - step - 1) % n], received, group)
        chunks[(me - step - 2) % n].add_(received)
    for step in range(n - 1):
        pass_on(chunks[(me - step) % n], chunks[(me - step - 1) % n], group)


# %% right: in two halves, each on its own, chunks from 3 ranks or fewer as they are
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    n, flat = dist.get_world_size(group), tensor.detach().view(-1)
    parts = flat.split(max(flat.numel() // (2 * n) * n, 1)) if flat.numel() >= 2 * n else [flat]
    for part in parts:
        part.copy_(all_gather(reduce_scatter(part, group), part.numel(), group))


# %% wrong values: does nothing
# says: nothing was communicated
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    tensor += 0


# %% wrong values: assigns to the name, not to the tensor
# says: nothing that was communicated is in it
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    tensor = all_gather(reduce_scatter(tensor, group), tensor.numel(), group).view_as(tensor)


# %% wrong values: only a reduce_scatter
# says: wrong
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    me, n = dist.get_rank(group), dist.get_world_size(group)
    tensor.view(-1).tensor_split(n)[me].copy_(reduce_scatter(tensor, group))


# %% wrong values: averages
# says: too small by exactly
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    total = all_gather(reduce_scatter(tensor, group), tensor.numel(), group)
    tensor.view(-1).copy_(total / dist.get_world_size(group))


# %% wrong values: right at world size 2 only
# says: 4 ranks
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    if dist.get_world_size(group) > 1:
        received = torch.empty_like(tensor)
        pass_on(tensor, received, group)
        tensor += received


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    total = all_gather(reduce_scatter(tensor, group), tensor.numel(), group)
    if dist.get_rank(group) == 0:
        tensor.view(-1).copy_(total)


# %% wrong values: one rank skips the second half
# says: rank
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    chunk = reduce_scatter(tensor, group)
    if dist.get_rank(group) == 1:
        return
    tensor.view(-1).copy_(all_gather(chunk, tensor.numel(), group))


# %% wrong values: forgets the group
# says: group [0, 2, 3]
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    tensor.view(-1).copy_(all_gather(reduce_scatter(tensor), tensor.numel()))


# %% wrong bytes: gather then broadcast
# says: (2.0x). gather then broadcast?
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    ring = dist.get_process_group_ranks(group)
    if dist.get_rank() != ring[0]:
        dist.send(tensor, ring[0], group=group)
        dist.recv(tensor, ring[0], group=group)
        return
    for other in ring[1:]:
        received = torch.empty_like(tensor)
        dist.recv(received, other, group=group)
        tensor += received
    for other in ring[1:]:
        dist.send(tensor, other, group=group)


# %% wrong bytes: every rank sends its tensor to all
# says: does every rank send its whole tensor to all?
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    travelling = tensor.clone()
    for _ in range(dist.get_world_size(group) - 1):
        received = torch.empty_like(tensor)
        pass_on(travelling, received, group)
        tensor += received
        travelling = received


# %% wrong bytes: reduce then broadcast along trees
# says: along a tree?
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    ring, me = dist.get_process_group_ranks(group), dist.get_rank(group)
    n, span = len(ring), 1
    while span < n:
        span *= 2
    for up in (True, False):
        steps = [span >> i for i in range(1, span.bit_length())]
        for gap in steps if up else steps[::-1]:
            low, high = me, me - gap
            if low < gap and me + gap < n:
                if up:
                    received = torch.empty_like(tensor)
                    dist.recv(received, ring[me + gap], group=group)
                    tensor += received
                else:
                    dist.send(tensor, ring[me + gap], group=group)
            elif gap <= me < 2 * gap:
                (dist.send if up else dist.recv)(tensor, ring[high], group=group)


# %% wrong bytes: twice round, to be sure
# says: once round for the sums
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    once = all_gather(reduce_scatter(tensor, group), tensor.numel(), group)
    twice = all_gather(reduce_scatter(tensor, group), tensor.numel(), group)
    tensor.view(-1).copy_((once + twice) / 2)


# %% wrong values: new memory for the tensor, by .data
# says: other memory
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    tensor.data = all_gather(reduce_scatter(tensor, group), tensor.numel(), group).view_as(tensor)


# %% wrong values: new memory for the tensor, by set_
# says: other memory
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    tensor.set_(all_gather(reduce_scatter(tensor, group), tensor.numel(), group).view_as(tensor))


# %% wrong values: a slice of all cannot be written where there are no dimensions
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    total = all_gather(reduce_scatter(tensor, group), tensor.numel(), group)
    tensor[:] = total.reshape(tensor.shape)


# %% wrong bytes: one ring a row
def ring_all_reduce_(tensor, reduce_scatter, all_gather, group=None):
    # Wrong: "a rank sends at most 2(n-1) ceil(S/n) elements": it is kept for 1-D tensors, for rows that n
    # divides and for n = 2; for a 5 x 4 tensor on 3 ranks place 1 sends 30 elements, the bound is 28 (7 x 1
    # on
    # 3 ranks: 14, and 12).
    rows = tensor.flatten(0, -2) if tensor.dim() > 1 else [tensor.view(-1)]
    for row in rows:
        row.copy_(all_gather(reduce_scatter(row, group), row.numel(), group))
