# Answers to reduce_to_root: right ones in other styles, and wrong ones with the part each must lose.

# %% setup
import torch
import torch.distributed as dist


# %% right: asynchronous calls
# change: dist.send(partial_sum, ring[(place - span + first) % n], group=group) -> dist.isend(partial_sum, ring[(place - span + first) % n], group=group).wait()
# change: dist.recv(received, ring[(place + span + first) % n], group=group) -> dist.irecv(received, ring[(place + span + first) % n], group=group).wait()
# %% right: a chain; the rounds are not judged
def reduce_to_root_(tensor, root, group=None):
    ring, me = dist.get_process_group_ranks(group), dist.get_rank(group)
    place, received = (me - ring.index(root)) % len(ring), tensor.clone()
    if place + 1 < len(ring):
        dist.recv(received, ring[(me + 1) % len(ring)], group=group)
        received += tensor
    if place:
        dist.send(received, ring[me - 1], group=group)
    else:
        tensor.copy_(received)


# %% wrong values: the root's own tensor is missing
# says: the root's own tensor is missing
# change: tensor if place == 0 -> tensor.zero_() if place == 0
# %% wrong values: rank 0 is the root
# says: rank 0 is the root
# change: ring.index(root) -> ring.index(root if 0 not in ring else 0)
# %% wrong values: partial sums are left on the way
# says: partial sums are left in the tensors
# change: tensor if place == 0 else tensor.clone() -> tensor
# %% wrong bytes: everyone sends to the root
# says: pass one partial sum on
def reduce_to_root_(tensor, root, group=None):
    for other in set(dist.get_process_group_ranks(group)) - {root}:
        if dist.get_rank() == other:
            dist.send(tensor, root, group=group)
        elif dist.get_rank() == root:
            received = torch.empty_like(tensor)
            dist.recv(received, other, group=group)
            tensor += received


# %% wrong bytes: the root sends the sum back
# says: the root keeps what it has
# from: everyone sends to the root
# change: dist.send(tensor, root, group=group) -> dist.send(tensor, root, group=group); dist.recv(tensor.clone(), root, group)
# change: tensor += received -> tensor += received; dist.send(tensor, other, group=group)
