"""Point-to-point exchanges that cannot deadlock: each rank sends and receives at the same time.

`dist.send` may block until its receiver is there, so a ring in which every rank sends first never moves.
Launching both transfers before waiting for either removes the order. Lab 02 teaches it. Production code:
`torch.distributed.batch_isend_irecv`, which pipeline schedules call; NCCL's ncclGroupStart/End.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist


def members(group: dist.ProcessGroup | None = None) -> list[int]:
    """Return the global ranks of `group` (None: the world) in group order."""
    return dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)


def exchange(
    sends: Sequence[tuple[torch.Tensor, int]],
    receives: Sequence[tuple[torch.Tensor, int]],
    group: dist.ProcessGroup | None = None,
) -> None:
    """Send and fill all tensors at once, and return when this rank's transfers are done.

    Args:
        sends: (tensor, global rank it goes to); tensors are contiguous.
        receives: (tensor to fill, global rank it comes from).
        group: that carries the messages; all peers are members.

    Communication: one send or recv an entry, in the given order between the same two ranks.
    """
    works = [dist.irecv(tensor, src, group=group) for tensor, src in receives]
    works += [dist.isend(tensor, dst, group=group) for tensor, dst in sends]
    wait_for(works)


def wait_for(works: Sequence[dist.Work | None]) -> None:
    """Return when these transfers are done; None is one that is, or was never needed."""
    for work in works:
        if work is not None:
            work.wait()


def ring_shift(
    tensor: torch.Tensor, group: dist.ProcessGroup | None = None, *, steps: int = 1
) -> torch.Tensor:
    """Return the tensor of the rank `steps` places before this one in the ring; all shapes are equal.

    Communication: one message of the tensor's bytes sent and one received a rank; none when the ring is
    turned by a multiple of its length.
    """
    ring = members(group)
    me, n = ring.index(dist.get_rank()), len(ring)
    if steps % n == 0:
        return tensor.clone()
    received = torch.empty_like(tensor)
    exchange([(tensor.contiguous(), ring[(me + steps) % n])], [(received, ring[(me - steps) % n])], group)
    return received
