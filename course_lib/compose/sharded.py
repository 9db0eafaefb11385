"""Shard parameters, gradients and optimizer state over a group: FSDP that keeps what it has gathered.

Llama 3's choice: weights are gathered once a step, after the optimizer, and stay for all micro-batches
(arXiv:2407.21783, section 3.3.2). Parameters are views of one flat vector; each rank updates its slice of it
in higher precision, and an all_gather brings the vector together again.

It is the `FlatShard` of labs 04 and 05 with `reshard_after_forward=False`: FSDP would gather and free a unit
around every forward and backward, 3 P per micro-batch instead of 2 P per step, and a pipeline's stages run
backwards in two halves, which have no one end at which FSDP could free a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.comm.autograd import group_size
from course_lib.comm.flat import FlatShard

OptimizerFactory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class ShardedParameters:
    """Keep parameters of one dtype as one flat vector, of which each rank of the group updates a slice.

    copies: how often the mesh holds these parameters beyond this group and `replicate` (ranks of tp that
    hold the same weights): the gradient norm counts them once.
    Communication a step: one reduce_scatter and one all_gather of all elements, padded; one
    all_reduce of a slice over `replicate`.
    Memory: gradients while they add up in full; master weights and optimizer state 1/n.
    """

    def __init__(
        self,
        params: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        replicate: dist.ProcessGroup,
        *,
        copies: int = 1,
        master_dtype: torch.dtype | None = None,
    ) -> None:
        self.params, self.replicate, self.copies = list(params), replicate, copies
        # Every rank has drawn the same values: nothing to broadcast.
        self.flat = FlatShard(self.params, group, broadcast_over=(), shard_dtype=master_dtype)
        for param, view in zip(self.params, self.flat.views, strict=True):
            param.data = view
        self.shard = nn.Parameter(self.flat.shard)

    @torch.no_grad()
    def reduce_gradients(self) -> None:
        """Sum the gradients over all ranks that hold these parameters, and keep this rank's slice."""
        full_grad = torch.empty_like(self.flat.full, dtype=self.shard.dtype)  # [n S], in the master's dtype
        self.flat.layout.flatten_(full_grad, [param.grad for param in self.params])
        for param in self.params:
            param.grad = None
        own_sum, _ = self.flat.reduce_scatter(full_grad)  # [S]
        if group_size(self.replicate) > 1:
            dist.all_reduce(own_sum, group=self.replicate)
        self.shard.grad = own_sum

    def norm_squared(self) -> Tensor:
        """Return this rank's addend of the squared gradient norm, a float64 scalar."""
        assert self.shard.grad is not None, "reduce_gradients comes first"
        return self.shard.grad.double().square().sum() / self.copies

    def gather(self) -> None:
        """Write all slices back into the parameters."""
        self.flat.gather_()
