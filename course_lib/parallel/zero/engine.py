"""Data parallelism whose ranks share the optimizer's work: each updates its shard of the parameters.

DDP keeps n equal optimizer states and computes n equal updates. ZeRO keeps 1/n of the state a rank: a
reduce_scatter gives each rank the mean gradient of its shard, it updates that shard, and an all_gather brings
the shards back: 2 moves of P elements, as one all_reduce. This file is the step; `_gradients.py` says when
gradients travel, `_bucket.py` is what does. Stage 2 frees gradients during backward too; stage 3 is
`parallel/fsdp`. Lab 04. Production code: DeepSpeed `runtime/zero/stage_1_and_2.py`, Megatron-Core
`DistributedOptimizer`; torch's ZeroRedundancyOptimizer gives whole parameters to ranks, which also suits
optimizers that look at whole matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.comm.flat import all_gather_flat, reduce_scatter_flat, same_memory
from course_lib.comm.p2p import wait_for
from course_lib.parallel._sharded import check_elementwise, clip_sharded_norm_, pack_buckets, run_step_checks
from course_lib.parallel.zero._bucket import ShardedBucket
from course_lib.parallel.zero._gradients import KeptGradients, SentGradients

Params = Iterable[nn.Parameter] | Iterable[dict[str, Any]]
_ELSEWHERE = (
    "a sharded optimizer is saved whole or in shards, told by parameter; got a call of {}(). "
    "Use full_state_dict, sharded_state_dict and load_state_dict_ of checkpoint.zero."
)


class ZeroOptimizer(Optimizer):
    """Step any element-wise torch optimizer (SGD, Adam, AdamW, ...), each rank on its 1/n of the parameters.

    Use as the optimizer itself: zero_grad(); loss.backward(); step(). It averages the gradients over ranks:
    no DDP around the model. Several backwards before a step accumulate, and learning-rate schedulers and
    parameter groups work as ever; `param_groups[i]["params"]` are this rank's shards.
    Layout (local shapes): parameters Replicate, views of flat buckets; the batch Shard(0). Optimizer state,
    and with stage 2 gradients, Shard: 1/n of each bucket. With stage 1, `.grad` stays this rank's own.
    Communication: at construction a broadcast a bucket or frozen parameter; a step one reduce_scatter and one
    all_gather a bucket, num_params elements (and padding) each. Stage 2 reduce_scatters in every backward,
    overlapped.
    Memory a rank, P parameters: stage 1 P + P gradients + (K + 1) P/n, with K values of state a parameter;
    stage 2 P + (K + 1) P/n and two buckets of gradients on the way. `master_dtype` adds P/n.
    master_dtype: keep the shard that the optimizer updates in this dtype, such as float32 for a bfloat16
    model: parameters and gradients then travel in bfloat16.
    reduce_by: "all_to_all" sends each rank its part of a bucket, to be added up there: as many bytes, and as
    much memory again for what is on the way. ZeRO++ does so; on gloo it is faster.
    A parameter unused in backward has gradient zero, as in DDP; frozen ones (at construction) have no state.
    Oracle: the optimizer in one process on the whole batch, where the shards are equal.
    Reference: Rajbhandari et al., ZeRO (arXiv:1910.02054), sections 5.1, 5.2 and 7.
    Raises: ValueError for an optimizer that is not element-wise, a parameter given twice, an unknown stage or
    reduce_by, a bucket_bytes that is not positive, and for parameters that were moved or reshaped since
    construction.
    """

    def __init__(
        self,
        params: Params,
        optimizer_class: Callable[..., Optimizer],
        *,
        stage: Literal[1, 2] = 1,
        process_group: dist.ProcessGroup | None = None,
        bucket_bytes: int = 25 * 2**20,
        master_dtype: torch.dtype | None = None,
        reduce_by: Literal["reduce_scatter", "all_to_all"] = "reduce_scatter",
        **defaults: Any,
    ) -> None:
        groups = _as_groups(params)
        self.params: list[nn.Parameter] = [param for entry in groups for param in entry["params"]]
        _check_arguments(self.params, optimizer_class, stage, reduce_by)
        self.stage, self.group = stage, process_group
        self.reduce = partial(reduce_scatter_flat, by_all_to_all=reduce_by == "all_to_all")
        self.world_size, self.group_rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.buckets: list[ShardedBucket] = []
        self.group_sizes = [len(entry["params"]) for entry in groups]
        self._is_built = False
        shard_groups = [
            {**entry, "params": self._shard_group(entry["params"], bucket_bytes, master_dtype)}
            for entry in groups
        ]
        self.inner = optimizer_class(shard_groups, **defaults)
        stepped = [param for entry in self.inner.param_groups for param in entry["params"]]
        for bucket, param in zip(self.buckets, stepped, strict=True):
            bucket.state_key = param
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state  # one and the same
        self._is_built = True
        self._broadcast_frozen()
        self.gradients = (KeptGradients if stage == 1 else SentGradients)(self.buckets, self.group)
        self._versions = self._count_versions()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the parameters and of the shards."""
        self.gradients.abandon()
        for param in (*self.params, *(bucket.shard for bucket in self.buckets)):
            if param.grad is not None:
                param.grad = None if set_to_none else param.grad.zero_()

    def sync_gradients(self) -> None:
        """Give every shard its mean gradient. `step` does it, unless something has asked for it before."""
        run_step_checks(self.params, self.inner)
        self.gradients.sync()

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale the mean gradients so that their global 2-norm is at most max_norm; return the norm before.

        As `torch.nn.utils.clip_grad_norm_` of the model's parameters, with one all_reduce of one number
        instead of one a parameter. No backward may follow before `step`.
        """
        self.sync_gradients()
        return clip_sharded_norm_([bucket.shard for bucket in self.buckets], max_norm, self.group)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Average gradients, update this rank's shard, gather everyone's."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_parameters()
        run_step_checks(self.params, self.inner)
        self.refresh_masters()
        self._step_bucket_by_bucket(self.gradients.launch())
        self.gradients.is_synced = False
        return loss

    def refresh_masters(self) -> None:
        """Take over parameters that were changed since the last step, by `model.load_state_dict`, say."""
        for bucket in self.buckets:
            bucket.refresh_master()
        versions = self._count_versions()
        if versions != self._versions and hasattr(self.inner, "refresh_masters"):
            self.inner.refresh_masters()  # an offloaded optimizer's
        self._versions = versions

    def gather_parameters(self) -> None:
        """Bring every rank's shards into the parameters, as `step` does.

        Communication: one all_gather a bucket.
        """
        wait_for([_launch_gather(bucket, self.group) for bucket in self.buckets])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused after construction: the buckets are cut."""
        if self._is_built:
            raise ValueError(
                "all parameter groups must be known when ZeroOptimizer cuts its buckets; got another one. "
                "Give it at construction."
            )
        super().add_param_group(param_group)

    def state_dict(self) -> Any:
        """Refused: it would save shards under numbers that no other optimizer has."""
        raise ValueError(_ELSEWHERE.format("state_dict"))

    def load_state_dict(self, _state_dict: Any) -> None:
        """Refused, as `state_dict` is."""
        raise ValueError(_ELSEWHERE.format("load_state_dict"))

    def _shard_group(
        self, params: list[nn.Parameter], bucket_bytes: int, master_dtype: torch.dtype | None
    ) -> list[nn.Parameter]:
        """Cut one parameter group into buckets; return this rank's shards of them."""
        numbers = {id(param): index for index, param in enumerate(self.params)}
        packed = pack_buckets([param for param in params if param.requires_grad], bucket_bytes)
        buckets = [
            ShardedBucket.of(bucket, [numbers[id(p)] for p in bucket], self.group, master_dtype, self.reduce)
            for bucket in packed
        ]
        self.buckets += buckets
        return [bucket.shard for bucket in buckets]

    @torch.no_grad()
    def _broadcast_frozen(self) -> None:
        for param in self.params:
            if not param.requires_grad and self.world_size > 1:
                message = param.detach().contiguous()
                dist.broadcast(message, group=self.group, group_src=0)
                param.copy_(message)

    def _check_parameters(self) -> None:
        for bucket in self.buckets:
            for index, param, view in zip(bucket.indices, bucket.params, bucket.views, strict=True):
                if not same_memory(param, view) or param.shape != view.shape:
                    raise ValueError(
                        f"parameters must stay where ZeroOptimizer put them; got parameter {index} of shape "
                        f"{list(param.shape)}, sharded as {list(view.shape)}, elsewhere. "
                        "Change or move the model before building the optimizer."
                    )

    def _count_versions(self) -> int:
        return sum(param._version for param in self.params)

    def _step_bucket_by_bucket(self, is_pending: bool) -> None:
        """Update each shard while later gradients still arrive and earlier parameters are gathered."""
        means = [bucket.shard.grad for bucket in self.buckets]
        for bucket in self.buckets:
            bucket.shard.grad = None  # the optimizer skips what has no gradient
        works = []
        for index, bucket in enumerate(self.buckets):
            if is_pending:
                bucket.finish(self.world_size, keep=True)
                means[index] = bucket.shard.grad
            bucket.shard.grad = means[index]
            self.inner.step()
            bucket.shard.grad = None
            works.append(_launch_gather(bucket, self.group))
        for bucket, mean in zip(self.buckets, means, strict=True):
            bucket.shard.grad = mean
        wait_for(works)


@torch.no_grad()
def _launch_gather(bucket: ShardedBucket, group: dist.ProcessGroup | None) -> dist.Work | None:
    bucket.write_own_slice()
    return all_gather_flat(bucket.flat, bucket.own_slice, group, async_op=True)


def _as_groups(params: Params) -> list[dict[str, Any]]:
    """Return parameter groups, each with its parameters in a list."""
    given: list[Any] = list(params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    return [
        {
            **entry,
            "params": [entry["params"]] if isinstance(entry["params"], Tensor) else list(entry["params"]),
        }
        for entry in groups
    ]


def _check_arguments(
    params: list[nn.Parameter], optimizer_class: Callable[..., Optimizer], stage: int, reduce_by: str
) -> None:
    if reduce_by not in ("reduce_scatter", "all_to_all"):
        raise ValueError(f"reduce_by must be 'reduce_scatter' or 'all_to_all'; got {reduce_by!r}. Name one.")
    if stage not in (1, 2):
        raise ValueError(f"stage must be 1 or 2; got {stage}. Stage 3 is parallel.fsdp.FSDP.")
    check_elementwise(optimizer_class)
    if len({id(param) for param in params}) < len(params):
        raise ValueError("every parameter must be given once; got one twice. Put it into one group.")
    meta = [index for index, param in enumerate(params) if param.is_meta]
    if meta:
        raise ValueError(
            f"parameters must hold data; got meta parameters {meta}. Initialise the model first."
        )
