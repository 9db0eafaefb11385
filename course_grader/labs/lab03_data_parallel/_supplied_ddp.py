"""The data-parallel wrapper that the check of `accumulate` supplies.

The judge hands its text to the ranks and keeps the file away from them: it would be an answer to `naive_ddp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from course_grader.inside.toy_models import trainable

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
        self.sent: dict[nn.Parameter, tuple[dist.Work, Tensor]] = {}
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
            if param not in self.sent and param.grad is not None:
                message = _copy_of_gradient(param)
                self._keep(param, all_reduce(message, async_op=True), message)
        for param, (work, message) in self.sent.items():
            work.wait()
            param.grad = message / dist.get_world_size()
        self.sent.clear()

    def _backward_outside_no_sync(self, param: Tensor) -> None:
        """Send, unless inside `no_sync`. The name is in messages about hangs, so `all_reduce` is here."""
        assert isinstance(param, nn.Parameter)
        if self.is_syncing:
            self._wait_before_resending(param)
            message = _copy_of_gradient(param)
            self._keep(param, all_reduce(message, async_op=True), message)

    def _wait_before_resending(self, param: nn.Parameter) -> None:
        if param in self.sent:
            self.sent.pop(param)[0].wait()

    def _keep(self, param: nn.Parameter, work: dist.Work | None, message: Tensor) -> None:
        assert work is not None
        self.sent[param] = (work, message)


def _copy_of_gradient(param: nn.Parameter) -> Tensor:
    assert param.grad is not None
    return param.grad.detach().clone()


def source() -> str:
    """Return the text of this module."""
    return Path(__file__).read_text(encoding="utf-8")
