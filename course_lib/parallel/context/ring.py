"""Ring attention: keys and values travel round the ring while every rank computes with those that are here.

At step t rank r holds the K, V of rank r - t: it sends them on, and meanwhile attends to them. After cp - 1
hops every query has met every key, and no rank ever held more than its own block, the one at work and the one
arriving. Backward goes round once more; the gradients of K, V travel one step behind their block, each rank
adding its part, and end at home. Lab 10. Liu et al., Ring Attention (arXiv:2310.01889); production code:
ring-flash-attention `zigzag_ring_flash_attn.py`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from course_lib.comm.p2p import members
from course_lib.model.partial_attention import accumulation_dtype, new_accumulators
from course_lib.parallel.context.blocks import add_gradients_, attend_
from course_lib.parallel.context.core import ContextParallel


class RingAttention(ContextParallel):
    """Attend with K, V sent round the ring in cp - 1 hops, each behind the computation of one block.

    Communication, a rank: forward cp - 1 messages of 2 B K H S/cp elements; backward as many again, and
    cp - 1 of the gradients, which are float32 (float64 for float64).
    Memory: forward two blocks of K, V beside its own, and a float32 output; saved for backward query, key,
    value, output and lse of the local tokens. Scores and full K, V never exist.
    Oracle: `sdpa` on the whole sequence. Raises: ValueError for shapes that do not fit together, a sequence
    that the layout cannot cut, documents that do not fill it.
    """

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
        self.check(query, key, value, positions)
        return self.apply(_Ring, query, key, value)


class Hop:
    """A tensor on its way to the next rank of the ring, and the previous rank's on its way here."""

    def __init__(self, tensor: Tensor, group: dist.ProcessGroup | None) -> None:
        ring = members(group)
        me = ring.index(dist.get_rank())
        self._sent, self._received = tensor, torch.empty_like(tensor)
        self._works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, self._sent, ring[(me + 1) % len(ring)], group),
                dist.P2POp(dist.irecv, self._received, ring[me - 1], group),
            ]
        )

    def wait(self) -> Tensor:
        """Return the previous rank's tensor, once it is here and this rank's has left."""
        for work in self._works:
            work.wait()
        return self._received


class _Ring(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, ring: RingAttention) -> Tensor:
        seq_len = ring.size * query.shape[2]
        out, lse = new_accumulators(query)
        kv = torch.stack((key, value))  # [2, B, K, S/cp, H], one message
        for step in range(ring.size):
            hop = Hop(kv, ring.group) if step < ring.size - 1 else None  # leaves before the block computes
            attend_(out, lse, query, kv[0], kv[1], ring.seen_of((ring.rank - step) % ring.size, seq_len))
            if hop is not None:
                kv = hop.wait()
        ctx.ring, out = ring, out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outs: Tensor) -> Any:
        ring: RingAttention = ctx.ring
        query, key, value, out, lse = ctx.saved_tensors
        seq_len, dtype = ring.size * query.shape[2], accumulation_dtype(query.dtype)
        grad_query, kv = torch.zeros_like(query, dtype=dtype), torch.stack((key, value))
        own = torch.zeros_like(kv, dtype=dtype)  # gradients from this rank's queries
        behind: Hop | None = None  # gradients of the block at work, from the ranks it has passed
        for step in range(ring.size):
            hop = Hop(kv, ring.group) if step < ring.size - 1 else None
            grad_kv = own if step == 0 else torch.zeros_like(own)
            add_gradients_(
                (grad_query, grad_kv[0], grad_kv[1]),
                *(grad_outs[0], query, kv[0], kv[1], out, lse),
                ring.seen_of((ring.rank - step) % ring.size, seq_len),
            )
            if behind is not None:
                grad_kv += behind.wait()
            if step > 0:
                behind = Hop(grad_kv, ring.group)
            if hop is not None:
                kv = hop.wait()
        if behind is not None:
            own += behind.wait()  # home again
        return grad_query.to(query.dtype), own[0].to(key.dtype), own[1].to(value.dtype), None
