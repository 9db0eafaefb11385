"""All-gather attention: every rank gathers all keys and values, and attends from its own queries.

With grouped heads K and V are small beside the queries, and one collective replaces cp - 1 hops: nothing
hides it, but any mask will do, and it is simple. Llama 3 chose it (arXiv:2407.21783, section 3.3.2). Lab 10.
Production code: torch `_context_parallel` with the "all_gather" rotation, Megatron-Core `cp_comm_type`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from course_lib.comm.autograd import all_gather_along, reduce_scatter_along
from course_lib.model.partial_attention import accumulation_dtype, new_accumulators
from course_lib.parallel.context.blocks import add_gradients_, attend_
from course_lib.parallel.context.core import ContextParallel


class AllGatherAttention(ContextParallel):
    """Attend with the whole K, V of the layer at hand on every rank.

    Communication, a rank: forward one all_gather of 2 B K H S/cp elements; backward the same again, and one
    reduce_scatter of 2 B K H S elements in float32 (float64 for float64).
    Memory: while it computes the K, V of all S tokens, in backward their gradients too; saved for backward
    the local query, key, value, output and lse only.
    Oracle: `sdpa` on the whole sequence. Raises: as `RingAttention`.
    """

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> Tensor:
        self.check(query, key, value, positions)
        return self.apply(_Gathered, query, key, value)

    def gather(self, key: Tensor, value: Tensor) -> Tensor:
        """Return every rank's K, V in rank order: [cp, 2, B, K, S/cp, H]."""
        kv = torch.stack((key, value))[None]
        return kv if self.size == 1 or self.group is None else all_gather_along(kv, self.group, 0)


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, core: AllGatherAttention) -> Tensor:
        seq_len = core.size * query.shape[2]
        out, lse = new_accumulators(query)
        for source, kv in enumerate(core.gather(key, value)):
            attend_(out, lse, query, kv[0], kv[1], core.seen_of(source, seq_len))
        ctx.core, out = core, out.to(query.dtype)
        ctx.save_for_backward(query, key, value, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outs: Tensor) -> Any:
        core: AllGatherAttention = ctx.core
        query, key, value, out, lse = ctx.saved_tensors
        seq_len, dtype = core.size * query.shape[2], accumulation_dtype(query.dtype)
        full_kv = core.gather(key, value)
        grad_query, grad_full = torch.zeros_like(query, dtype=dtype), torch.zeros_like(full_kv, dtype=dtype)
        for source, (kv, grad_kv) in enumerate(zip(full_kv, grad_full, strict=True)):
            add_gradients_(
                (grad_query, grad_kv[0], grad_kv[1]),
                *(grad_outs[0], query, kv[0], kv[1], out, lse),
                core.seen_of(source, seq_len),
            )
        if core.size > 1 and core.group is not None:
            grad_full = reduce_scatter_along(grad_full, core.group, 0)
        own = grad_full[0]
        return grad_query.to(query.dtype), own[0].to(key.dtype), own[1].to(value.dtype), None
