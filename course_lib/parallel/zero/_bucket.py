"""Parameters that live in one flat vector, of which this rank updates one shard.

The vector holds the whole parameters of a bucket, as views; its gradients travel as one message. Lab 04;
`engine.py` is made of these. Megatron-Core's ParamAndGradBuffer is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.comm.flat import FlatLayout, same_memory
from course_lib.parallel._sharded import local_part, parts_of, sharded_gradient


@dataclass(slots=True, eq=False)
class ShardedBucket:
    """Parameters that live in one flat vector, this rank's shard of it, and how far this backward got."""

    params: list[nn.Parameter]
    indices: list[int]  # in torch.optim's numbering
    layout: FlatLayout
    flat: Tensor
    views: list[Tensor]
    own_slice: Tensor  # of flat
    shard: nn.Parameter  # own_slice itself, or its copy in the master dtype
    state_key: nn.Parameter  # whose state the optimizer keeps: the shard, or its master if that is offloaded
    group: dist.ProcessGroup | None
    parts: list[slice]  # of the shard, for each parameter
    reduce: Callable[..., dist.Work | None]  # as reduce_scatter_flat
    flat_grad: Tensor | None = None
    grad_views: list[Tensor] = field(default_factory=list)
    filled: set[int] = field(default_factory=set)
    work: dist.Work | None = None
    reduced: Tensor | None = None

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        params: list[nn.Parameter],
        indices: list[int],
        group: dist.ProcessGroup | None,
        master_dtype: torch.dtype | None,
        reduce: Callable[..., dist.Work | None],
    ) -> ShardedBucket:
        layout = FlatLayout.of(params, dist.get_world_size(group))
        flat = params[0].new_empty(layout.padded_numel)
        layout.flatten_(flat, list(params))
        if layout.num_shards > 1:
            dist.broadcast(flat, group=group, group_src=0)
        views = layout.unflatten(flat)
        for param, view in zip(params, views, strict=True):
            param.data = view
        start, stop = layout.shard_range(dist.get_rank(group))
        own = flat[start:stop]
        shard = nn.Parameter(own.to(master_dtype or own.dtype))
        parts = parts_of(layout.sizes, start, stop)
        return cls(params, indices, layout, flat, views, own, shard, shard, group, parts, reduce)

    @property
    def owns_master(self) -> bool:
        return not same_memory(self.shard, self.own_slice)

    @property
    def is_full(self) -> bool:
        return len(self.filled) == len(self.params)

    def write_own_slice(self) -> None:
        if self.owns_master:
            self.own_slice.copy_(self.shard)

    @torch.no_grad()
    def refresh_master(self) -> None:
        """Take over the parameters that somebody else has changed: a loaded state_dict, say."""
        if self.owns_master:
            changed = self.shard.to(self.own_slice.dtype) != self.own_slice
            self.shard.data.copy_(torch.where(changed, self.own_slice.to(self.shard.dtype), self.shard))

    def await_mean(self, sync: Callable[[], None]) -> None:
        """Show a gradient that is still to be averaged, and is when somebody asks for its elements."""
        self.shard.grad = None

        def part() -> Tensor:
            sync()
            return local_part(self.shard.grad)  # type: ignore[no-any-return]

        like = self.flat[:1].detach() if self.flat_grad is None else self.flat_grad[:1]
        shown = like.to(self.shard.dtype).expand(self.shard.shape)
        self.shard.grad = sharded_gradient(shown, self.group, part, is_readable=False)

    def grad_part(self, position: int) -> Tensor:
        """Return what this rank holds of a parameter's mean gradient."""
        assert self.shard.grad is not None, "the gradients are synchronised"
        part: Tensor = local_part(self.shard.grad)[self.parts[position]]
        return part

    def fill(self, position: int, grad: Tensor | None) -> None:
        if self.flat_grad is None:
            self.flat_grad = torch.empty_like(self.flat)
            self.flat_grad[self.layout.numel :].zero_()
            self.grad_views = self.layout.unflatten(self.flat_grad)
        view = self.grad_views[position]
        if grad is None:
            view.zero_()
        elif not same_memory(grad, view):
            view.copy_(grad.detach())
        self.filled.add(position)

    def fill_all(self, grads: Sequence[Tensor | None]) -> None:
        """Fill every place; gradients that are there already are not copied."""
        with torch._C.DisableTorchFunctionSubclass():
            for position, grad in enumerate(grads):
                self.fill(position, grad)
        self.filled.clear()

    def fill_missing(self) -> None:
        for position in range(len(self.params)):
            if position not in self.filled:
                self.fill(position, None)

    def launch(self) -> None:
        assert self.flat_grad is not None, "a bucket is filled before it is sent"
        self.reduced = torch.empty_like(self.own_slice)
        self.work = self.reduce(self.reduced, self.flat_grad, self.group, async_op=True)

    @torch.no_grad()
    def finish(self, world_size: int, *, keep: bool = False) -> None:
        """Wait for the sum, free the full gradients unless told to keep, add the mean to the shard's."""
        assert self.reduced is not None, "a bucket is sent before it is waited for"
        if self.work is not None:
            self.work.wait()
        mean = self.reduced.to(self.shard.dtype).div_(world_size)
        self.work = self.reduced = None
        if not keep:
            self.flat_grad, self.grad_views = None, []
        self.add_mean(mean)

    def abandon(self) -> None:
        """Wait for what is on the wire and forget it."""
        if self.work is not None:
            self.work.wait()
        self.work = self.reduced = self.flat_grad = None
        self.grad_views = []
        self.filled.clear()

    def add_mean(self, mean: Tensor) -> None:
        """Add to the shard's gradient, which torch's functions see as a part of a larger one."""
        before = self.shard.grad
        self.shard.grad = sharded_gradient(mean, self.group) if before is None else before.add_(mean)
