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
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from course_lib.parallel._sharded import check_before_step, own_values, pack_buckets


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


class _DataParallel(nn.Module):
    """When both wrappers synchronise: at the end of each backward, unless under `no_sync`."""

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None) -> None:
        super().__init__()
        self.module = module
        self.process_group = process_group
        self.world_size = dist.get_world_size(process_group)
        self._params = [param for param in module.parameters() if param.requires_grad]
        self._sends = self._waits = True
        self._in_backward = False
        self._since_sync: Literal["nothing", "forward", "gradients"] = "nothing"
        broadcast_module_(module, process_group)
        if self.world_size > 1:
            for param in self._params:
                check_before_step(param, self._check_synchronised, owner=self)
                param.register_post_accumulate_grad_hook(self._on_gradient)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module on this rank's shard."""
        trains = self.world_size > 1 and torch.is_grad_enabled()
        if trains and torch._C._current_graph_task_id() == -1:  # not recomputed in backward
            self._before_forward()
        out = self.module(*args, **kwargs)
        for leaf in tree_leaves(out) if trains else ():
            if isinstance(leaf, Tensor) and leaf.requires_grad:
                leaf.register_hook(self._begin_backward)
        return out

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backwards inside accumulate local gradients unsent; the next one outside sends the total.

        Raises: ValueError if an optimizer steps before one outside, or `sync_gradients`, has sent them.
        """
        before, self._sends = self._sends, False
        try:
            yield
        finally:
            self._sends = before

    def sync_gradients(self) -> None:
        """Replace every gradient by its mean over the ranks, unless backward has done it.

        Backward does it, on ranks where a parameter got a gradient. A rank that used none must call this.
        """
        if self.world_size > 1 and self._since_sync != "nothing":
            self._average()
            self._since_sync = "nothing"

    def _average(self) -> None:
        raise NotImplementedError

    def _before_forward(self) -> None:
        self._in_backward = False  # of a backward that failed
        if self._since_sync == "nothing":
            self._since_sync = "forward"

    def _begin_backward(self, _: Tensor) -> None:
        """Synchronise when this backward is over."""
        if self._sends and self._waits and not self._in_backward:
            self._in_backward = True
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def _end_of_backward(self) -> None:
        self._in_backward = False
        self.sync_gradients()

    def _on_gradient(self, param: Tensor) -> None:
        """Backward has finished the gradient of a parameter."""
        if self._since_sync != "gradients":  # a module's attributes are slow to set
            self._since_sync = "gradients"
        self._begin_backward(param)

    def _check_synchronised(self, _optimizer: object) -> None:
        if self._since_sync == "gradients" and any(param.grad is not None for param in self._params):
            raise ValueError(
                "gradients must be averaged over the ranks before the optimizer steps; got this rank's own. "
                "Run the last backward outside no_sync(), or call sync_gradients()."
            )


class NaiveDDP(_DataParallel):
    """Average gradients over ranks, one parameter after the other, once backward is over.

    Use: as the module itself; `loss.backward()` ends with mean gradients. Earlier micro-batches go under
    `no_sync()`, or each backward sends: the sum is the same.
    Layout (local shapes): parameters, buffers and gradients Replicate; the batch Shard(0).
    Communication: at construction one broadcast a parameter or buffer; a backward one all_reduce a
    parameter with a gradient, num_params elements in all. Nothing overlaps: the ranks compute, then they
    wait.
    Memory: params + gradients, as without data parallelism.
    Oracle: the module on the whole batch, where the shards are equal.
    Raises: ValueError if an optimizer would step gradients that were not averaged.
    """

    # Simplification: all ranks must use the same parameters, or their all_reduces do not pair up.
    # BucketedDDP sends zeros for what a rank did not use.

    def __init__(self, module: nn.Module, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(module, process_group)

    def _average(self) -> None:
        for param in self._params:
            if param.grad is not None:
                message = own_values(param.grad).contiguous()
                dist.all_reduce(message, group=self.process_group)
                param.grad = message.div_(self.world_size)


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


class BucketedDDP(_DataParallel):
    """Average gradients over ranks in buckets, each sent as soon as backward has filled it.

    Use: as the module itself; `loss.backward()` ends with mean gradients. Earlier micro-batches go under
    `no_sync()`.
    Layout (local shapes): parameters, buffers and gradients Replicate; the batch Shard(0). After backward
    every gradient is a view of its bucket (as torch's gradient_as_bucket_view).
    Communication: at construction one broadcast a parameter or buffer; a backward one async all_reduce a
    bucket, in bucket order on every rank (bucket i after i - 1, whatever finishes first), num_params elements
    in all.
    Memory: params + gradients, and the freshly computed gradient of one parameter at a time.
    Frozen parameters are left out; freeze before wrapping. Tied parameters are one parameter, ready when all
    uses have contributed. A parameter unused on some ranks contributes zeros there. Unused on every rank, it
    gets a zero gradient; with find_unused_parameters=True (one more all_reduce, of an int32 a parameter) it
    keeps None, as in one process, which matters to optimizers that move a parameter of zero gradient (weight
    decay, momentum). World size 1 sends nothing and leaves gradients as they are.
    Oracle: the module on the whole batch, where the shards are equal.
    Reference: Li et al., PyTorch Distributed (arXiv:2006.15704), section 3.2.
    Raises: ValueError for a bucket_bytes that is not positive, if an optimizer would step gradients that were
    not averaged, and for a parameter whose gradient comes twice in one backward.
    """

    def __init__(
        self,
        module: nn.Module,
        bucket_bytes: int = 25 * 2**20,
        process_group: dist.ProcessGroup | None = None,
        *,
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__(module, process_group)
        self.find_unused_parameters = find_unused_parameters
        packed = pack_buckets(self._params, bucket_bytes)
        self._buckets = [_Bucket.of(params) for params in packed] if self.world_size > 1 else []
        self._place: dict[Tensor, tuple[_Bucket, int]] = {
            param: (bucket, position)
            for bucket in self._buckets
            for position, param in enumerate(bucket.params)
        }
        self._num_launched = 0

    @contextmanager
    def no_wait(self) -> Iterator[None]:
        """Let backwards inside send, and leave what they sent on the wire until `sync_gradients`.

        For one that has other work meanwhile: a pipeline with several stages a rank.
        Raises: ValueError for a second backward or a forward before `sync_gradients`.
        """
        before, self._waits = self._waits, False
        try:
            yield
        finally:
            self._waits = before

    @torch.no_grad()
    def _average(self) -> None:
        """Send what backward left unsent, then wait."""
        used = [param.grad is not None for param in self._params] if self.find_unused_parameters else []
        for bucket in self._buckets[self._num_launched :]:
            for position in range(len(bucket.params)):
                if position not in bucket.ready:
                    self._fill(bucket, position)
        self._launch_complete_buckets()
        self._wait_for_buckets()
        if used:
            self._drop_unused(used)

    def _before_forward(self) -> None:
        if self._in_backward:  # it failed: what it sent is not wanted
            self._wait_for_buckets()
        elif any(bucket.ready for bucket in self._buckets):
            raise ValueError(
                "gradients must be synchronised before the next forward; got one while they are in flight. "
                "Call sync_gradients() after a backward under no_wait()."
            )
        super()._before_forward()

    def _on_gradient(self, param: Tensor) -> None:
        """Put a gradient that backward has finished into its bucket; send each bucket whose turn it is."""
        super()._on_gradient(param)
        if not self._sends:
            return
        bucket, position = self._place[param]
        if position in bucket.ready:
            raise ValueError(
                "a gradient must come once between synchronisations; got one a second time, from a second "
                "backward under no_wait() or from two checkpointed uses of a parameter. Run all but the last "
                "under no_sync()."
            )
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
            bucket.work = dist.all_reduce(bucket.flat, group=self.process_group, async_op=True)
            self._num_launched += 1

    def _wait_for_buckets(self) -> None:
        for bucket in self._buckets:
            if bucket.work is not None:
                bucket.work.wait()
            bucket.work = None
            bucket.ready.clear()
        self._num_launched = 0

    def _drop_unused(self, used: list[bool]) -> None:
        num_ranks_using = torch.tensor(used, dtype=torch.int32, device=self._buckets[0].flat.device)
        dist.all_reduce(num_ranks_using, group=self.process_group)
        for param, num_ranks in zip(self._params, num_ranks_using.tolist(), strict=True):
            if num_ranks == 0:
                param.grad = None
