"""How the buckets get their mean gradients: kept until `step` asks (stage 1), or sent in every backward (2).

Both are hooks of the parameters: a gradient moves into its bucket as soon as backward has finished it.
Lab 04; `engine.py` steps with what comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from course_lib.parallel._sharded import check_before_step, sharded_gradient, wrapper_of
from course_lib.parallel.zero._bucket import ShardedBucket


class Gradients:
    """What both stages share: when a backward begins and ends, and what `.grad` shows."""

    is_readable = True  # whether a parameter's `.grad` holds elements

    def __init__(self, buckets: Sequence[ShardedBucket], group: dist.ProcessGroup | None) -> None:
        self.buckets, self.group = buckets, group
        self.world_size = dist.get_world_size(group)
        self.is_synced = self.in_backward = False
        for bucket in buckets:
            for position, param in enumerate(bucket.params):
                param.register_post_accumulate_grad_hook(partial(self._on_gradient, bucket, position))
                if wrapper_of(param) is None:
                    check_before_step(param, self._refuse_other)

    def launch(self) -> bool:
        """Begin to average what is not yet; return whether buckets must be waited for."""
        return False

    def sync(self) -> None:
        """Give every shard its mean gradient, unless it has it."""
        self.is_synced = True

    def abandon(self) -> None:
        """Forget what a backward that failed has left."""
        self.is_synced = False
        if self.in_backward:
            self.in_backward = False
            for bucket in self.buckets:
                bucket.abandon()

    def _refuse_other(self, optimizer: Optimizer) -> None:
        """Stop another optimizer, which would step the parameters with this rank's own gradients."""
        held = {id(param) for entry in optimizer.param_groups for param in entry["params"]}
        if any(id(param) in held for bucket in self.buckets for param in bucket.params):
            raise ValueError(
                "the parameters of a ZeroOptimizer must be stepped by it alone; got a step of a "
                f"{type(optimizer).__name__} that holds them too. Leave that one out."
            )

    def _begin_backward(self) -> None:
        if not self.in_backward:
            self.in_backward, self.is_synced = True, False
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)

    def _on_gradient(self, bucket: ShardedBucket, position: int, param: Tensor) -> None:
        raise NotImplementedError

    def _end_of_backward(self) -> None:
        raise NotImplementedError

    def _show(self, bucket: ShardedBucket, position: int, value: Tensor) -> None:
        """Set `.grad`: torch's functions find this rank's part of the mean behind it, once it is there."""
        bucket.params[position].grad = sharded_gradient(
            value, self.group, partial(self._part_of, bucket, position), is_readable=self.is_readable
        )

    def _part_of(self, bucket: ShardedBucket, position: int) -> Tensor:
        self.sync()
        return bucket.grad_part(position)


class KeptGradients(Gradients):
    """Stage 1: `.grad` is this rank's own, a view of its bucket; backwards add to it, `sync` averages."""

    def launch(self) -> bool:
        """Send all buckets, unless they were or a wrapper around the model has averaged them."""
        if self.is_synced or self._take_averaged():
            return False
        for bucket in self.buckets:
            bucket.fill_all([param.grad for param in bucket.params])
            bucket.shard.grad = None
            bucket.launch()
        return True

    def sync(self) -> None:
        """Send all buckets and wait for them."""
        is_pending = self.launch()
        self.is_synced = True
        for bucket in self.buckets if is_pending else ():
            bucket.finish(self.world_size, keep=True)
            self._show_all(bucket)

    @torch.no_grad()
    def _take_averaged(self) -> bool:
        """Take this rank's part of gradients that a wrapper has averaged; False: no wrapper."""
        if all(wrapper_of(param) is None for bucket in self.buckets for param in bucket.params):
            return False
        for bucket in self.buckets:
            mean = torch.zeros_like(bucket.shard)
            start, stop = bucket.layout.shard_range(dist.get_rank(self.group))
            for position, first, part in bucket.layout.overlaps(start, stop):
                grad = bucket.params[position].grad
                if grad is not None:
                    flat = grad.detach().as_subclass(Tensor).reshape(-1)
                    mean[part] = flat[first : first + part.stop - part.start].to(mean.dtype)
            bucket.shard.grad = None
            bucket.add_mean(mean)
            self._show_all(bucket)
        return True

    def _show_all(self, bucket: ShardedBucket) -> None:
        for position, param in enumerate(bucket.params):
            if param.grad is not None:
                self._show(bucket, position, param.grad.as_subclass(Tensor))

    def _on_gradient(self, bucket: ShardedBucket, position: int, param: Tensor) -> None:
        """Move a gradient into its bucket, where later backwards add to it and `launch` sends it from."""
        self._begin_backward()
        if position not in bucket.filled and wrapper_of(param) is None:
            bucket.fill(position, param.grad)
            self._show(bucket, position, bucket.grad_views[position])

    def _end_of_backward(self) -> None:
        """Give all parameters and shards a gradient that torch's functions can ask."""
        self.in_backward = False
        for bucket in self.buckets:
            for position, param in enumerate(bucket.params):
                if param.grad is None and wrapper_of(param) is None:
                    bucket.fill(position, None)
                    self._show(bucket, position, bucket.grad_views[position])
            bucket.await_mean(self.sync)


class SentGradients(Gradients):
    """Stage 2: a full bucket leaves during backward and is freed; the elements of `.grad` lie in shards."""

    is_readable = False

    def __init__(self, buckets: Sequence[ShardedBucket], group: dist.ProcessGroup | None) -> None:
        self._num_launched = 0
        super().__init__(buckets, group)
        for bucket in buckets:
            for param in bucket.params:
                param.register_hook(self._before_first_gradient)

    def abandon(self) -> None:
        """Forget what a backward that failed has left."""
        if self.in_backward:
            self._num_launched = 0
        super().abandon()

    def _before_first_gradient(self, _: Tensor) -> None:
        """Before the first gradient is added: what torch's zero_grad has forgotten, forget too."""
        if self.in_backward:
            return
        self._begin_backward()
        for bucket in self.buckets:
            for position, param in enumerate(bucket.params):
                if param.grad is None and bucket.shard.grad is not None:
                    bucket.grad_part(position).zero_()
                param.grad = None

    def _on_gradient(self, bucket: ShardedBucket, position: int, param: Tensor) -> None:
        """Move a gradient that backward has finished into its bucket; send each bucket whose turn it is."""
        if wrapper_of(param) is not None:
            raise ValueError(
                "gradients of stage 2 must be ZeroOptimizer's to send; got a model in DDP, which keeps them "
                "whole. Leave DDP out, or use stage=1."
            )
        if position in bucket.filled:
            raise ValueError(
                "a gradient must come once in a backward; got one twice, from two checkpointed uses of a "
                "parameter. Use stage=1, or checkpoint both uses as one."
            )
        bucket.fill(position, param.grad)
        param.grad = None
        while self._num_launched < len(self.buckets) and self.buckets[self._num_launched].is_full:
            self._launch_next()

    def _launch_next(self) -> None:
        """Send a bucket; the one before has then had its time: two buckets are on the way at most."""
        index, self._num_launched = self._num_launched, self._num_launched + 1
        self.buckets[index].launch()
        if index > 0:
            self.buckets[index - 1].finish(self.world_size)

    def _end_of_backward(self) -> None:
        """Send the rest, wait, and show each parameter a gradient that torch's functions can ask."""
        self.in_backward = False
        for bucket in self.buckets[self._num_launched :]:
            bucket.fill_missing()
            self._launch_next()
        self._num_launched = 0
        if self.buckets:
            self.buckets[-1].finish(self.world_size)
        for bucket in self.buckets:
            bucket.filled.clear()
            nothing = bucket.flat[:1].detach().squeeze(0)
            for position, shape in enumerate(bucket.layout.shapes):
                self._show(bucket, position, nothing.expand(shape))
