"""Run `accumulate` in a rank, with a data-parallel wrapper that the check supplies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from course_lib.grading.probe import Probe
from course_lib.grading.toys import LEARNING_RATE, build_toy, gradients_of, state_of, trainable

all_reduce = dist.all_reduce


class SuppliedDDP(nn.Module):
    """Average gradients: a backward outside `no_sync` sends every `.grad`, `sync_gradients` waits.

    What no backward sent, `sync_gradients` sends. Copies are sent, so that a needless backward outside
    `no_sync` costs bytes and nothing else.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.is_syncing = True
        self.in_flight: dict[nn.Parameter, tuple[dist.Work, Tensor]] = {}
        for param in trainable(module):
            param.register_post_accumulate_grad_hook(self._backward_outside_no_sync)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module."""
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Send nothing for backwards in here."""
        before, self.is_syncing = self.is_syncing, False
        try:
            yield
        finally:
            self.is_syncing = before

    def sync_gradients(self) -> None:
        """Let every gradient be its mean over the ranks."""
        for param in trainable(self.module):
            if param not in self.in_flight and param.grad is not None:
                message = _copy_of_gradient(param)
                self._keep(param, all_reduce(message, async_op=True), message)
        for param, (work, message) in self.in_flight.items():
            work.wait()
            param.grad = message / dist.get_world_size()
        self.in_flight.clear()

    def _backward_outside_no_sync(self, param: Tensor) -> None:
        """Send, unless inside `no_sync`. The name stands in messages about hangs, so `all_reduce` is here."""
        assert isinstance(param, nn.Parameter)
        if self.is_syncing:
            self._wait_before_resending(param)
            message = _copy_of_gradient(param)
            self._keep(param, all_reduce(message, async_op=True), message)

    def _wait_before_resending(self, param: nn.Parameter) -> None:
        if param in self.in_flight:
            self.in_flight.pop(param)[0].wait()

    def _keep(self, param: nn.Parameter, work: dist.Work | None, message: Tensor) -> None:
        assert work is not None
        self.in_flight[param] = (work, message)


def _copy_of_gradient(param: nn.Parameter) -> Tensor:
    assert param.grad is not None
    return param.grad.detach().clone()


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return gradients and the weights after one step of SGD; marks hold what one micro-batch alone needs."""
    sizes = params["sizes"][probe.rank]
    microbatches = list(zip(inputs["x"].split(sizes), inputs["y"].split(sizes), strict=True))
    _measure_one(params, inputs, microbatches[sizes.index(max(sizes))], probe)
    total = sum(map(sum, params["sizes"]))
    model = build_toy(params["model"], inputs)
    model.register_forward_pre_hook(lambda *_: probe.mark("forward"))  # counts what is kept outside tensors
    ddp = SuppliedDDP(model)
    start = {name: tensor.clone() for name, tensor in state_of(model).items()}
    impl(ddp, microbatches[::-1], mse_loss, total)  # a step before leaves no trace
    model.load_state_dict(start)
    optimizer = torch.optim.SGD(trainable(model), lr=LEARNING_RATE)
    optimizer.zero_grad()
    probe.mark("accumulate begins")
    impl(ddp, microbatches, mse_loss, total)
    probe.mark("accumulate ends")
    out = {f"grad:{name}": grad for name, grad in gradients_of(model).items()}
    optimizer.step()
    return out | {f"{name} after a step": tensor for name, tensor in state_of(model).items()}


def _measure_one(
    params: dict[str, Any], inputs: dict[str, Tensor], microbatch: tuple[Tensor, Tensor], probe: Probe
) -> None:
    """Forward and backward of this rank's largest micro-batch, for the memory bound."""
    model = build_toy(params["model"], inputs)
    probe.mark("one begins")
    mse_loss(model(microbatch[0]), microbatch[1]).backward()
    probe.mark("one ends")
