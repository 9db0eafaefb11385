"""Data parallelism: every rank holds the whole model, sees its shard of the batch, and averages gradients.

The gradient is linear in the samples, so the mean of equal shards' mean gradients is the gradient of the
whole batch. `NaiveDDP` sends each gradient after backward; `BucketedDDP` packs gradients into buckets and
sends a bucket while backward still computes the next. Lab 03. torch's DDP
(`torch/csrc/distributed/c10d/reducer.cpp`) does the same from inside backward; it also rebuilds buckets in
the order gradients arrived and broadcasts buffers before each forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@torch.no_grad()
def broadcast_module_(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Overwrite parameters (frozen too) and buffers with those of the group's rank 0.

    Communication: one broadcast a parameter or buffer; tied ones count once. World size 1: none.
    """
    if dist.get_world_size(group) == 1:
        return
    for tensor in (*module.parameters(), *module.buffers()):
        message = tensor.detach().contiguous()  # the tensor itself unless it is, say, a transposed view
        dist.broadcast(message, group=group, group_src=0)
        tensor.copy_(message)


class NaiveDDP(nn.Module):
    """Average gradients over ranks, one parameter after the other, once backward is over.

    Use: loss.backward(); ddp.sync_gradients(); optimizer.step(). Backwards before one `sync_gradients`
    accumulate.
    Layout (local shapes): parameters, buffers and gradients Replicate; the batch Shard(0).
    Communication: at construction one broadcast a parameter or buffer; `sync_gradients` one all_reduce a
    parameter with a gradient, num_params elements in all. Nothing overlaps: the ranks compute, then they
    wait.
    Memory: params + gradients, as without data parallelism.
    Oracle: the module on the whole batch, where the shards are equal.
    """

    # Simplification: all ranks must use the same parameters, or their all_reduces do not pair up.
    # BucketedDDP sends zeros for what a rank did not use.

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.module = module
        self.group = group
        self.world_size = dist.get_world_size(group)
        broadcast_module_(module, group)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on this rank's shard."""
        return self.module(*args, **kwargs)

    def sync_gradients(self) -> None:
        """Replace every gradient by its mean over the ranks."""
        if self.world_size == 1:
            return
        for param in self.module.parameters():
            if param.grad is not None:
                message = param.grad.contiguous()
                dist.all_reduce(message, group=self.group)
                param.grad = message.div_(self.world_size)


def pack_buckets(params: list[nn.Parameter], bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Group parameters in reverse order, that in which backward finishes them, roughly.

    The rule: a bucket closes when the next parameter would make it exceed `bucket_bytes`, or has another
    dtype or device. A parameter larger than `bucket_bytes` has a bucket of its own; the last bucket holds
    what is left.
    Raises: ValueError if bucket_bytes is not positive.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be positive; got {bucket_bytes}. torch's DDP uses 25 * 2**20.")
    buckets: list[list[nn.Parameter]] = []
    free_bytes = 0
    for param in reversed(params):
        same_kind = buckets and (buckets[-1][0].dtype, buckets[-1][0].device) == (param.dtype, param.device)
        if not same_kind or param.nbytes > free_bytes:
            buckets.append([])
            free_bytes = bucket_bytes
        buckets[-1].append(param)
        free_bytes -= param.nbytes
    return buckets


@dataclass(slots=True, eq=False)
class _Bucket:
    """One flat buffer, the gradients that live in it, and how far this step got."""

    params: list[nn.Parameter]
    flat: Tensor
    views: list[Tensor]  # the slice of `flat` for each parameter, in the parameter's shape
    ready: set[int]  # positions whose gradient this step's backward has finished
    work: dist.Work | None = None

    @classmethod
    def of(cls, params: list[nn.Parameter]) -> _Bucket:
        sizes = [param.numel() for param in params]
        flat = torch.zeros(sum(sizes), dtype=params[0].dtype, device=params[0].device)
        slices = torch.split(flat, sizes)
        views = [piece.view(param.shape) for piece, param in zip(slices, params, strict=True)]
        return cls(params, flat, views, set())


class BucketedDDP(nn.Module):
    """Average gradients over ranks in buckets, each sent as soon as backward has filled it.

    Use: loss.backward(); ddp.sync_gradients(); optimizer.step(). Between backward and `sync_gradients`
    gradients are in flight: do not read them. Earlier micro-batches go under `no_sync()`.
    Layout (local shapes): parameters, buffers and gradients Replicate; the batch Shard(0). After a step every
    gradient is a view of its bucket (as torch's gradient_as_bucket_view) and valid until the next backward.
    Communication: at construction one broadcast a parameter or buffer; a step one async all_reduce a bucket,
    in bucket order on every rank (bucket i after i - 1, whatever finishes first), num_params elements in all.
    Memory: params + gradients, and the freshly computed gradient of one parameter at a time.
    Frozen parameters are left out; freeze before wrapping. Tied parameters are one parameter, ready when all
    uses have contributed. A parameter unused on some ranks contributes zeros there. Unused on every rank, it
    gets a zero gradient; with find_unused=True (one more all_reduce, of an int32 a parameter) it keeps None,
    as in one process, which matters to optimizers that move a parameter of zero gradient (weight decay,
    momentum). World size 1 sends nothing and leaves gradients as they are.
    Oracle: the module on the whole batch, where the shards are equal.
    Reference: Li et al., PyTorch Distributed (arXiv:2006.15704), section 3.2.
    Raises: ValueError for a bucket_bytes that is not positive, and for a forward or a second backward while
    gradients are in flight.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_bytes: int = 25 * 2**20,
        group: dist.ProcessGroup | None = None,
        *,
        find_unused: bool = False,
    ) -> None:
        super().__init__()
        self.module = module
        self.group = group
        self.world_size = dist.get_world_size(group)
        self.find_unused = find_unused
        self._params = [param for param in module.parameters() if param.requires_grad]
        packed = pack_buckets(self._params, bucket_bytes)
        self._buckets = [_Bucket.of(params) for params in packed] if self.world_size > 1 else []
        self._num_launched = 0
        self._in_flight = False
        self._sync = True
        broadcast_module_(module, group)
        self._register_hooks()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on this rank's shard."""
        if self._in_flight:
            raise ValueError(
                "gradients must be synchronised before the next forward; got one while they are in flight. "
                "Call sync_gradients() after backward, or run this backward under no_sync()."
            )
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backwards inside accumulate local gradients unsent; the next one outside sends the total."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    @torch.no_grad()
    def sync_gradients(self) -> None:
        """Send what backward left unsent, then wait: every gradient becomes its mean over the ranks."""
        if not self._buckets:
            return
        used = [param.grad is not None for param in self._params] if self.find_unused else []
        for bucket in self._buckets[self._num_launched :]:
            for position in range(len(bucket.params)):
                if position not in bucket.ready:
                    self._fill(bucket, position)
        self._launch_complete_buckets()
        self._wait_for_buckets()
        if self.find_unused:
            self._drop_unused(used)

    def _register_hooks(self) -> None:
        for bucket in self._buckets:
            for position, param in enumerate(bucket.params):
                param.register_post_accumulate_grad_hook(partial(self._on_gradient, bucket, position))

    def _on_gradient(self, bucket: _Bucket, position: int, _: Tensor) -> None:
        """Put a gradient that backward has finished into its bucket; send each bucket whose turn it is."""
        if not self._sync:
            return
        if position in bucket.ready:
            raise ValueError(
                "one backward between sync_gradients() calls may synchronise; got a second one. "
                "Run all but the last under no_sync()."
            )
        self._in_flight = True
        self._fill(bucket, position)
        self._launch_complete_buckets()

    def _fill(self, bucket: _Bucket, position: int) -> None:
        """Write gradient / world_size (zeros if there is none) into the bucket; .grad becomes that slice."""
        param, view = bucket.params[position], bucket.views[position]
        if param.grad is None:
            view.zero_()
        else:
            torch.mul(param.grad.detach(), 1 / self.world_size, out=view)
        param.grad = view
        bucket.ready.add(position)

    def _launch_complete_buckets(self) -> None:
        while self._num_launched < len(self._buckets):
            bucket = self._buckets[self._num_launched]
            if len(bucket.ready) < len(bucket.params):
                return
            bucket.work = dist.all_reduce(bucket.flat, group=self.group, async_op=True)
            self._num_launched += 1

    def _wait_for_buckets(self) -> None:
        for bucket in self._buckets:
            assert bucket.work is not None, "every bucket has been launched"
            bucket.work.wait()
            bucket.work = None
            bucket.ready.clear()
        self._num_launched = 0
        self._in_flight = False

    def _drop_unused(self, used: list[bool]) -> None:
        num_ranks_using = torch.tensor(used, dtype=torch.int32, device=self._buckets[0].flat.device)
        dist.all_reduce(num_ranks_using, group=self.group)
        for param, num_ranks in zip(self._params, num_ranks_using.tolist(), strict=True):
            if num_ranks == 0:
                param.grad = None
