"""Shard parameters, gradients and optimizer state over a group: FSDP that keeps what it has gathered.

Llama 3's choice: weights are gathered once a step, after the optimizer, and stay for all micro-batches
(arXiv:2407.21783, section 3.3.2). Parameters are views of one flat vector; each rank updates its slice of it
in higher precision, and an all_gather brings the vector together again.

`parallel.fsdp` does not serve here: it gathers and frees a unit around every forward and backward, so it
would send 3 P a micro-batch instead of 2 P a step, and its optimizer steps a shard in the parameters' own
dtype, not a master in float32. A pipeline's stages also run backwards in two halves, which have no one end at
which FSDP could free a unit. What both are made of, `comm.flat`, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.comm.autograd import group_rank, group_size
from course_lib.comm.flat import all_gather_flat, reduce_scatter_flat

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
        self.params, self.group, self.replicate, self.copies = list(params), group, replicate, copies
        n, total = group_size(group), sum(p.numel() for p in params)
        padded = -(-total // n) * n
        first = self.params[0]
        self.flat = torch.zeros(padded, dtype=first.dtype, device=first.device)
        for param, view in zip(self.params, self._views(self.flat), strict=True):
            view.copy_(param.detach())
            param.data = view
        size = padded // n
        self.slice = slice(group_rank(group) * size, (group_rank(group) + 1) * size)
        master = self.flat[self.slice].to(master_dtype or first.dtype, copy=True)
        self.shard = nn.Parameter(master)

    def _views(self, flat: Tensor) -> list[Tensor]:
        parts = flat[: sum(p.numel() for p in self.params)].split([p.numel() for p in self.params])
        return [part.view_as(param) for part, param in zip(parts, self.params, strict=True)]

    @torch.no_grad()
    def reduce_gradients(self) -> None:
        """Sum the gradients over all ranks that hold these parameters, and keep this rank's slice."""
        full = torch.zeros_like(self.flat, dtype=self.shard.dtype)
        for param, view in zip(self.params, self._views(full), strict=True):
            if param.grad is not None:
                view.copy_(param.grad)
                param.grad = None
        grad = torch.empty_like(self.shard)
        reduce_scatter_flat(grad, full, self.group)
        if group_size(self.replicate) > 1:
            dist.all_reduce(grad, group=self.replicate)
        self.shard.grad = grad

    def norm_squared(self) -> Tensor:
        """Return this rank's addend of the squared gradient norm, a float64 scalar."""
        assert self.shard.grad is not None, "reduce_gradients comes first"
        return self.shard.grad.double().square().sum() / self.copies

    @torch.no_grad()
    def gather(self) -> None:
        """Write all slices back into the parameters."""
        own = self.shard.detach().to(self.flat.dtype)
        all_gather_flat(self.flat, own, self.group)
