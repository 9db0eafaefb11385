"""Collectives made of sends and receives: trees for latency, rings for bandwidth, both for clusters.

A ring moves 2 (n-1)/n of the data per rank for an all_reduce, the least possible, in 2 (n-1) steps; a
binomial tree needs ceil(log2 n) rounds and moves all the data in each. Lab 02 teaches them. NCCL chooses
between rings and (double binary) trees by size, and runs them in GPU kernels over chunks.

A tensor is cut into n chunks as `torch.tensor_split` cuts it: the first S mod n chunks have one element more.
"""

import threading
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from course_lib.comm.p2p import Ring, exchange, members

_KEPT_BYTES = 16 * 2**20
_kept = threading.local()
_COMBINE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.Tensor.add_,
    "product": torch.Tensor.mul_,
    "max": lambda mine, other: torch.maximum(mine, other, out=mine),
    "min": lambda mine, other: torch.minimum(mine, other, out=mine),
}


def tree_broadcast_(tensor: torch.Tensor, root: int, group: dist.ProcessGroup | None = None) -> None:
    """Copy the tensor of global rank `root` into every member's tensor, along a binomial tree.

    Communication: ceil(log2 n) rounds; each rank receives once, the root not at all.

    Raises:
        ValueError: `root` is not a member.
    """
    ring = _from_root(root, group)
    me, n = ring.index(dist.get_rank()), len(ring)
    with _flat_view(tensor) as flat:
        span = 1
        while span < n:  # the first `span` ranks have the data
            if me < span and me + span < n:
                exchange([(flat, ring[me + span])], [], group)
            elif span <= me < 2 * span:
                exchange([], [(flat, ring[me - span])], group)
            span *= 2


def ring_reduce_scatter(
    tensor: torch.Tensor, group: dist.ProcessGroup | None = None, *, op: str = "sum"
) -> torch.Tensor:
    """Return this rank's chunk of the combination of all members' tensors; 1-D, the input is unchanged.

    Layout: full_x [S] Partial -> local_x [S/n] Shard.
    Communication: n-1 messages of at most ceil(S/n) elements sent per rank.
    """
    ring = members(group)
    chunks = list(tensor.detach().reshape(-1).clone().tensor_split(len(ring)))
    _reduce_scatter_(chunks, ring, group, _combination(op))
    return chunks[ring.index(dist.get_rank())].clone()


def ring_all_gather(chunk: torch.Tensor, numel: int, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Return the 1-D tensor of `numel` elements whose chunks the members hold.

    Layout: local_x [S/n] Shard -> full_x [S] Replicate.
    Communication: n-1 messages of at most ceil(S/n) elements sent per rank.

    Raises:
        ValueError: the chunk is not this rank's share of `numel` elements.
    """
    ring = members(group)
    full = torch.empty(numel, dtype=chunk.dtype, device=chunk.device)
    chunks = list(full.tensor_split(len(ring)))
    mine = chunks[ring.index(dist.get_rank())]
    if chunk.numel() != mine.numel():
        raise ValueError(
            f"rank {dist.get_rank()}'s chunk must hold its {mine.numel()} of {numel} elements over "
            f"{len(ring)} ranks; got {chunk.numel()}. Cut the tensor with torch.tensor_split."
        )
    mine.copy_(chunk.reshape(-1))
    _all_gather_(chunks, ring, group)
    return full


def ring_all_reduce_(
    tensor: torch.Tensor, group: dist.ProcessGroup | None = None, *, op: str = "sum"
) -> None:
    """Replace every member's tensor by the combination of all: reduce_scatter, then all_gather.

    Communication: 2 (n-1) messages of at most ceil(S/n) elements sent per rank.
    """
    with _flat_view(tensor) as flat:
        _ring_all_reduce_(flat, members(group), group, _combination(op))


def hierarchical_all_reduce_(
    tensor: torch.Tensor, server_size: int, group: dist.ProcessGroup | None = None, *, op: str = "sum"
) -> None:
    """All-reduce over servers of `server_size` ranks each: inside, across, inside.

    Communication, with m servers of k ranks: reduce_scatter inside, all_reduce of S/k elements across, and
    all_gather inside: at most 2 (m-1) ceil(ceil(S/k)/m) elements per rank cross servers.

    Raises:
        ValueError: the group is not made of whole servers.
    """
    combine = _combination(op)
    ring = members(group)
    if server_size < 1 or len(ring) % server_size:
        raise ValueError(
            f"server_size must divide the group's {len(ring)} ranks; got {server_size}. Use whole servers."
        )
    server, place = divmod(ring.index(dist.get_rank()), server_size)
    inside = ring[server * server_size : (server + 1) * server_size]
    across = ring[place::server_size]
    with _flat_view(tensor) as flat:
        chunks = list(flat.tensor_split(server_size))
        _reduce_scatter_(chunks, inside, group, combine)
        _ring_all_reduce_(chunks[place], across, group, combine)
        _all_gather_(chunks, inside, group)


def all_to_all(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], group: dist.ProcessGroup | None = None
) -> None:
    """Fill `outputs[j]` with member j's `inputs[i]`, where i is this rank's place; shapes may differ by pair.

    Communication: n-1 messages sent per rank; every pair of ranks exchanges in its own round.

    Raises:
        ValueError: not one input and one output a member.
    """
    ring = members(group)
    me, n = ring.index(dist.get_rank()), len(ring)
    if not len(inputs) == len(outputs) == n:
        raise ValueError(
            f"all_to_all needs one input and one output for each of {n} members; got {len(inputs)} inputs "
            f"and {len(outputs)} outputs."
        )
    outputs[me].copy_(inputs[me])
    for step in range(1, n):
        to, source = (me + step) % n, (me - step) % n
        sends = [(inputs[to].contiguous(), ring[to])] if inputs[to].numel() else []
        receives = [(outputs[source], ring[source])] if outputs[source].numel() else []
        exchange(sends, receives, group)


# ---- on lists of ranks, so that a server or a column of servers needs no group of its own


def _reduce_scatter_(
    chunks: Sequence[torch.Tensor],
    ring: Sequence[int],
    group: dist.ProcessGroup | None,
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    """Combine this rank's chunk in place; the others become partial results."""
    hops = Ring(group, ring)
    me, n, size = hops.rank, hops.size, chunks[0].numel()  # no chunk is larger
    memory = _take_memory(chunks[0], size)
    for step in range(1, n):  # the partial result of chunk c travels from rank c+1 round to rank c
        mine = chunks[(me - 1 - step) % n]
        received = hops.commit(chunks[(me - step) % n], memory[: mine.numel()])
        hops.wait()
        combine(mine, received)
    _keep_memory(memory)


def _all_gather_(
    chunks: Sequence[torch.Tensor], ring: Sequence[int], group: dist.ProcessGroup | None
) -> None:
    hops = Ring(group, ring)
    for step in range(hops.size - 1):  # pass on what came last
        hops.commit(chunks[(hops.rank - step) % hops.size], chunks[(hops.rank - step - 1) % hops.size])
        hops.wait()


def _ring_all_reduce_(
    flat: torch.Tensor,
    ring: Sequence[int],
    group: dist.ProcessGroup | None,
    combine: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    chunks = list(flat.tensor_split(len(ring)))
    _reduce_scatter_(chunks, ring, group, combine)
    _all_gather_(chunks, ring, group)


def _take_memory(like: torch.Tensor, numel: int) -> torch.Tensor:
    """Return memory to receive into: what this thread's last call has kept, where that will do."""
    kept: torch.Tensor | None = vars(_kept).pop("memory", None)
    if kept is not None and kept.dtype == like.dtype and kept.numel() >= numel and _is_plain(like):
        return kept
    return like.new_empty(numel)


def _keep_memory(memory: torch.Tensor) -> None:
    """Keep a little for the next call, now that nothing is on its way there: new pages take time."""
    if _is_plain(memory) and memory.nbytes <= _KEPT_BYTES:
        _kept.memory = memory


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether only its thread uses a tensor: no stream does, and it is not fake."""
    return type(tensor) is torch.Tensor and tensor.device.type == "cpu"


def _from_root(root: int, group: dist.ProcessGroup | None) -> list[int]:
    """The members in ring order, beginning with the root."""
    ring = members(group)
    if root not in ring:
        raise ValueError(f"root must be a member of {ring} (global ranks); got {root}.")
    at = ring.index(root)
    return ring[at:] + ring[:at]


def _combination(op: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    if op not in _COMBINE:
        raise ValueError(f"op must be one of {sorted(_COMBINE)}; got {op!r}.")
    return _COMBINE[op]


class _flat_view:
    """A contiguous 1-D view of a tensor; if only a copy can be one, it is written back at the end."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor.detach()
        self.flat = self.tensor.view(-1) if tensor.is_contiguous() else self.tensor.reshape(-1)

    def __enter__(self) -> torch.Tensor:
        return self.flat

    def __exit__(self, *_: object) -> None:
        if not self.tensor.is_contiguous():
            self.tensor.copy_(self.flat.view(self.tensor.shape))
