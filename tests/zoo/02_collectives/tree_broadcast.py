# Answers to tree_broadcast: right ones in other styles, and wrong ones with the part each must lose.
# Longer than 150 lines: each tree, star and chain is a loop of its own.

# %% setup
import torch
import torch.distributed as dist


def places(root, group):
    """Members in the order of the tree, and this rank's place in it."""
    ring = dist.get_process_group_ranks(group)
    first = ring.index(root)
    order = ring[first:] + ring[:first]
    return order, order.index(dist.get_rank())


# %% right: halves of the range, recursively
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)

    def spread(low, high):
        """The first of low .. high - 1 has the tensor."""
        if high - low < 2:
            return
        middle = (low + high + 1) // 2
        if me == low:
            dist.send(tensor, order[middle], group=group)
        if me == middle:
            dist.recv(tensor, order[low], group=group)
        spread(low, middle) if me < middle else spread(middle, high)

    spread(0, len(order))


# %% right: far partners first, asynchronous sends, receives into a buffer
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    n = len(order)
    top = 1
    while top < n:
        top *= 2
    low = (me & -me) if me else top
    if me:
        buffer = torch.empty_like(tensor)
        dist.irecv(buffer, order[me - low], group=group).wait()
        tensor.copy_(buffer)
    works = []
    while low > 1:
        low //= 2
        if me + low < n:
            works.append(dist.isend(tensor, order[me + low], group=group))
    for work in works:
        work.wait()


# %% right: receives from any source, sends in the order of the rounds
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    if me:
        dist.recv(tensor, group=group)
    span = 1 << me.bit_length()
    while me + span < len(order):
        dist.send(tensor, order[me + span], group=group)
        span *= 2


# %% wrong values: does nothing
# says: nothing was communicated
def tree_broadcast_(tensor, root, group=None):
    tensor += 0


# %% wrong values: right at world size 2 only
# says: 4 ranks
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    if len(order) > 1 and me == 0:
        dist.send(tensor, order[1], group=group)
    elif me == 1:
        dist.recv(tensor, order[0], group=group)


# %% wrong values: root 0 only
# says: rank 0 is the root
def tree_broadcast_(tensor, root, group=None):
    ring = dist.get_process_group_ranks(group)
    me, n, span = dist.get_rank(group), len(ring), 1
    while span < n:
        if me < span and me + span < n:
            dist.send(tensor, ring[me + span], group=group)
        elif span <= me < 2 * span:
            dist.recv(tensor, ring[me - span], group=group)
        span *= 2


# %% wrong values: powers of two only
# says: 3 ranks
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    span = 1
    while 2 * span <= len(order):
        if me < span:
            dist.send(tensor, order[me + span], group=group)
        elif me < 2 * span:
            dist.recv(tensor, order[me - span], group=group)
        span *= 2


# %% wrong values: the root is taken for a place in the group
# says: group [1, 2, 3]
def tree_broadcast_(tensor, root, group=None):
    ring = dist.get_process_group_ranks(group)
    order = ring[root % len(ring) :] + ring[: root % len(ring)]
    me, span = order.index(dist.get_rank()), 1
    while span < len(order):
        if me < span and me + span < len(order):
            dist.send(tensor, order[me + span], group=group)
        elif span <= me < 2 * span:
            dist.recv(tensor, order[me - span], group=group)
        span *= 2


# %% wrong values: one rank forgets to receive
# says: rank
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    span = 1
    while span < len(order):
        if me < span and me + span < len(order):
            dist.send(tensor, order[me + span], group=group)
        elif span <= me < 2 * span and me != 2:
            dist.recv(tensor, order[me - span], group=group)
        span *= 2


# %% wrong order: the root sends to everyone itself
# says: the root sends everything itself
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    if me:
        dist.recv(tensor, order[0], group=group)
        return
    for other in order[1:]:
        dist.send(tensor, other, group=group)


# %% wrong order: the root starts all its sends at once
# says: the root sends everything itself
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    if me:
        dist.recv(tensor, order[0], group=group)
        return
    for work in [dist.isend(tensor, other, group=group) for other in order[1:]]:
        work.wait()


# %% wrong order: a chain
# says: a chain
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    if me:
        dist.recv(tensor, order[me - 1], group=group)
    if me + 1 < len(order):
        dist.send(tensor, order[me + 1], group=group)


# %% wrong order: a binary heap, one round too many at 8 ranks
# says: 8 ranks
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    if me:
        dist.recv(tensor, order[(me - 1) // 2], group=group)
    for child in (2 * me + 1, 2 * me + 2):
        if child < len(order):
            dist.send(tensor, order[child], group=group)


# %% wrong bytes, order: at two ranks the other answers the root
# says: on rank 0 the tensor must come in 0 messages
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    span = 1
    while span < len(order):
        if me < span and me + span < len(order):
            dist.send(tensor, order[me + span], group=group)
        elif span <= me < 2 * span:
            dist.recv(tensor, order[me - span], group=group)
        span *= 2
    if len(order) == 2 and me == 0:
        dist.recv(torch.empty_like(tensor), order[1], group=group)
    elif len(order) == 2:
        dist.send(tensor, order[0], group=group)


# %% wrong bytes, order: in two pieces, one after the other along the tree
# says: it received 2
# says: send the tensor in one
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    for piece in tensor.view(-1).tensor_split(2):
        span = 1
        while span < len(order):
            if me < span and me + span < len(order):
                dist.send(piece, order[me + span], group=group)
            elif span <= me < 2 * span:
                dist.recv(piece, order[me - span], group=group)
            span *= 2


# %% wrong values: receives into a tensor of its own, and passes that on
# says: written back in place
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    span = 1
    while span < len(order):
        if me < span and me + span < len(order):
            dist.send(tensor, order[me + span], group=group)
        elif span <= me < 2 * span:
            received = torch.empty_like(tensor)
            dist.recv(received, order[me - span], group=group)
            tensor = received
        span *= 2


# %% wrong order: the right tree, near partners first
# says: everyone who has the tensor must send in every round
def tree_broadcast_(tensor, root, group=None):
    order, me = places(root, group)
    reach = me & -me if me else len(order)
    if me:
        dist.recv(tensor, order[me - reach], group=group)
    span = 1
    while span < reach and me + span < len(order):
        dist.send(tensor, order[me + span], group=group)
        span *= 2


# %% wrong values: the plan of the first call is kept, whatever the root
_PLANS = {}


def tree_broadcast_(tensor, root, group=None):
    # Wrong: "from any root: every member's tensor becomes the root's": parent and children are kept by size
    # and
    # position, so a later call with another root on as many members broadcasts from the first call's root.
    ring = dist.get_process_group_ranks(group)
    n, position = len(ring), dist.get_rank(group)
    if (n, position) not in _PLANS:
        shift = ring.index(root)
        place, parent, children, span = (position - shift) % n, None, [], 1
        while span < n:
            if span <= place < 2 * span:
                parent = (place - span + shift) % n
            elif place < span and place + span < n:
                children.append((place + span + shift) % n)
            span *= 2
        _PLANS[n, position] = parent, children
    parent, children = _PLANS[n, position]
    if parent is not None:
        dist.recv(tensor, ring[parent], group=group)
    for child in children:
        dist.send(tensor, ring[child], group=group)
