"""A gather, or a scatter, cut into steps that hide behind the matrix product beside them.

Both walk a ring. `gather_matmul` multiplies the positions it has while the next rank's arrive;
`matmul_scatter` computes the next rank's partial sums while the last ones travel. They send what a ring
all_gather or reduce_scatter sends. Wang et al. (ASPLOS 2023) call it decomposition with overlap, torch
async tensor parallelism (`distributed/_symmetric_memory`), Transformer Engine userbuffers; those copy
between GPUs without occupying the cores that multiply.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.comm.p2p import members


def gather_matmul(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None], group: dist.ProcessGroup
) -> tuple[Tensor, ...]:
    """Compute all_gather(x, dim -2) @ weight.T + bias for each weight.

    Layout: x [..., S/n, D], weights [F/n, D] -> [..., S, F/n] each.
    Communication: n-1 messages of x.numel() elements sent a rank.
    """
    ring, positions = members(group), x.shape[-2]
    me, n = ring.index(dist.get_rank()), len(ring)
    outs = tuple(x.new_empty(*x.shape[:-2], n * positions, weight.shape[0]) for weight in weights)
    part = x.contiguous()
    for step in range(n):
        source = (me - step) % n
        arriving, works = _pass_on(part, ring, me, group) if step < n - 1 else (part, [])
        for out, weight, bias in zip(outs, weights, biases, strict=True):
            out.narrow(-2, source * positions, positions).copy_(F.linear(part, weight, bias))
        _wait(works)
        part = arriving
    return outs


def matmul_scatter(x: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Compute reduce_scatter(x @ weight.T, dim -2).

    Layout: x [..., S, F/n], weight [D, F/n] -> [..., S/n, D].
    Communication: n-1 messages of S/n * D elements (times the leading dims) sent a rank.
    """
    ring = members(group)
    me, n = ring.index(dist.get_rank()), len(ring)
    parts = x.chunk(n, dim=-2)
    total, arriving, works = F.linear(parts[(me - 1) % n], weight), x, list[dist.Work]()
    for step in range(1, n):  # the sums for rank r start at rank r+1 and go round to r
        arriving, works = _pass_on(total, ring, me, group)
        total = F.linear(parts[(me - 1 - step) % n], weight)
        _wait(works)
        total += arriving
    return total


def _pass_on(
    tensor: Tensor, ring: Sequence[int], me: int, group: dist.ProcessGroup
) -> tuple[Tensor, list[dist.Work]]:
    """Start to send to the next rank and to receive from the one before."""
    arriving = tensor.new_empty(tensor.shape)
    works = [
        dist.irecv(arriving, ring[me - 1], group=group),
        dist.isend(tensor, ring[(me + 1) % len(ring)], group=group),
    ]
    return arriving, [work for work in works if work is not None]


def _wait(works: Sequence[dist.Work]) -> None:
    for work in works:
        work.wait()
