"""ZeRO-1 as a loop: reduce_scatter the gradients, step this rank's shard, all_gather the parameters.

Lab 04. `engine.py` does the same bucket by bucket, so that the messages overlap, and for stage 2 sends each
bucket during backward and frees it. DeepSpeed: `runtime/zero/stage_1_and_2.py`.

Layout (local shapes): parameters and gradients Replicate, parameters as views of one flat vector; optimizer
    state Shard, 1/n of the vector; the batch Shard(0).
Communication, P parameters: a step one reduce_scatter and one all_gather of P elements: as one all_reduce.
Memory: P parameters + P gradients (and P for the message) + (K + 1) P/n, with K values of state a parameter.
Oracle: the optimizer in one process, on the whole batch, where the shards are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.comm.flat import FlatLayout, all_gather_flat, reduce_scatter_flat


class ExplicitZero:
    """Step parameters of one dtype, each rank its 1/n of them, with any element-wise optimizer."""

    @torch.no_grad()
    def __init__(
        self,
        params: Iterable[nn.Parameter],
        make_optimizer: Callable[[list[nn.Parameter]], Optimizer],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        self.params, self.group = list(params), group
        self.layout = FlatLayout.of(self.params, dist.get_world_size(group))
        self.full = self.params[0].new_empty(self.layout.padded_numel)
        self.layout.flatten_(self.full, self.params)
        if self.layout.num_shards > 1:
            dist.broadcast(self.full, group=group, group_src=0)
        for param, view in zip(self.params, self.layout.unflatten(self.full), strict=True):
            param.data = view
        start, stop = self.layout.shard_range(dist.get_rank(group))
        self.shard = nn.Parameter(self.full[start:stop])  # the same memory: a step changes the parameters
        self.optimizer = make_optimizer([self.shard])

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for param in (*self.params, self.shard):
            param.grad = None

    def step(self) -> None:
        """Average gradients, update this rank's shard, gather everyone's."""
        self.shard.grad = self.mean_gradient()
        self.optimizer.step()
        all_gather_flat(self.full, self.shard.detach(), self.group)

    @torch.no_grad()
    def mean_gradient(self) -> Tensor:
        """Return this rank's part of the gradients' mean over the ranks."""
        grads = torch.empty_like(self.full)
        self.layout.flatten_(grads, [param.grad for param in self.params])
        mean = torch.empty_like(self.shard)
        reduce_scatter_flat(mean, grads, self.group)
        return mean / self.layout.num_shards
