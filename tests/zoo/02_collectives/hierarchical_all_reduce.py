# Answers to hierarchical_all_reduce: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: each way to cut and to cross servers stands in full.

# %% setup
import torch
import torch.distributed as dist


# %% right: the all_reduce across from its halves, shape restored
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    mine = reduce_scatter(tensor, inside)
    total = all_gather(reduce_scatter(mine, across), mine.numel(), across)
    tensor.copy_(all_gather(total, tensor.numel(), inside).view(tensor.shape))


# %% right: skips what has one member, in two halves of the tensor
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    k, m = dist.get_world_size(inside), dist.get_world_size(across)
    flat = tensor.view(-1)
    if k == 1:
        if m > 1:
            all_reduce_(flat, across)
        return
    size = flat.numel() // (2 * k * m) * (k * m)
    for part in (flat[:size], flat[size:]) if size else (flat,):
        chunk = reduce_scatter(part, inside)
        if m > 1:
            all_reduce_(chunk, across)
        part.copy_(all_gather(chunk, part.numel(), inside))


# %% right: all_reduce inside, each rank takes a k-th of it across (more bytes inside, as few across)
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    all_reduce_(tensor, inside)
    me, k = dist.get_rank(inside), dist.get_world_size(inside)
    chunk = tensor.view(-1).tensor_split(k)[me].clone()
    all_reduce_(chunk, across)
    tensor.view(-1).copy_(all_gather(chunk, tensor.numel(), inside))


# %% wrong values: does nothing
# says: nothing was communicated
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    tensor += 0


# %% wrong values: never goes across
# says: nothing was communicated
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    all_reduce_(tensor, inside)


# %% wrong values: never goes across, if servers have several ranks
# says: only the ranks of one server are summed
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    all_reduce_(tensor, inside if dist.get_world_size(inside) > 1 else across)


# %% wrong values: sums across only, if there are several servers
# says: nothing was summed inside
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    all_reduce_(tensor, across if dist.get_world_size(across) > 1 else inside)


# %% wrong values: right at world size 2 only
# says: 2 servers of 2 ranks
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    if dist.get_world_size() > 1:
        other = torch.empty_like(tensor)
        rank = dist.get_rank()
        works = [dist.irecv(other, rank ^ 1), dist.isend(tensor, rank ^ 1)]
        for work in works:
            work.wait()
        tensor += other


# %% wrong values: right on rank 0 only
# says: right on rank 0 only
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    chunk = reduce_scatter(tensor, inside)
    all_reduce_(chunk, across)
    total = all_gather(chunk, tensor.numel(), inside)
    if dist.get_rank() == 0:
        tensor.view(-1).copy_(total)


# %% wrong values: the result is not written into the tensor
# says: own value
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    chunk = reduce_scatter(tensor, inside)
    all_reduce_(chunk, across)
    tensor = all_gather(chunk, tensor.numel(), inside)


# %% wrong values: one rank skips the step across
# says: rank
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    chunk = reduce_scatter(tensor, inside)
    if dist.get_rank() != 1:
        all_reduce_(chunk, across)
    tensor.view(-1).copy_(all_gather(chunk, tensor.numel(), inside))


# %% wrong bytes: one ring over all ranks
# says: one ring over all
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    all_reduce_(tensor)


# %% wrong bytes: inside and across with the whole tensor
# says: all k ranks carry the whole tensor
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    all_reduce_(tensor, inside)
    all_reduce_(tensor, across)


# %% wrong bytes: across first
# says: all k ranks carry the whole tensor
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    all_reduce_(tensor, across)
    chunk = reduce_scatter(tensor, inside)
    tensor.view(-1).copy_(all_gather(chunk, tensor.numel(), inside))


# %% wrong bytes: a leader a server
# says: or a leader
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    all_reduce_(tensor, inside)
    ranks = dist.get_process_group_ranks(inside)
    if dist.get_rank() == ranks[0]:
        all_reduce_(tensor, across)
        for other in ranks[1:]:
            dist.send(tensor, other, group=inside)
    else:
        dist.recv(tensor, ranks[0], group=inside)


# %% wrong values: new memory for the tensor
# says: other memory
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    chunk = reduce_scatter(tensor, inside)
    all_reduce_(chunk, across)
    tensor.data = all_gather(chunk, tensor.numel(), inside).view_as(tensor)


# %% wrong values: takes what an in-place collective returns for its result
# says: collectives write into a tensor you pass in
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    chunk = all_reduce_(reduce_scatter(tensor, inside), across)
    tensor.view(-1).copy_(all_gather(chunk, tensor.numel(), inside))


# %% wrong bytes: one flat ring for tiny tensors
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    # Wrong: "at most 2(m-1) ceil(ceil(S/k)/m) elements a rank go to other servers": below one element a
    # rank it
    # takes the flat ring; 3 elements on 2 x 2: the rank at the border sends 5 across, allowed are 2.
    ranks = dist.get_world_size()
    if tensor.numel() < ranks:
        all_reduce_(tensor, None)
        return
    mine = reduce_scatter(tensor, inside)
    all_reduce_(mine, across)
    tensor.view(-1).copy_(all_gather(mine, tensor.numel(), inside))


# %% wrong values: sums all inside, and cuts by torch.chunk instead of tensor_split
def hierarchical_all_reduce_(tensor, inside, across, reduce_scatter, all_gather, all_reduce_):
    k, place = dist.get_world_size(inside), dist.get_rank(inside)
    flat = tensor.view(-1)
    all_reduce_(flat, inside)
    pieces = flat.chunk(k)
    mine = pieces[place].clone() if place < len(pieces) else flat.new_empty(0)
    all_reduce_(mine, across)
    flat.copy_(all_gather(mine, flat.numel(), inside))
