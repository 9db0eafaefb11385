"""A host with memory of its own and a link to the device; it logs every transfer.

`offload_step` (lab 04) gets one. This machine has no device, so both ends are ordinary memory. The log is
real, and so is the wait: until `wait()` the target holds NaN or its old values. If the source is written to
before that, NaN arrives, as garbage may on a real link.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from course_grader.inside.probe import storage_address

State = dict[str, Tensor]


class Transfer:
    """A copy on its way; `wait()` ends it and returns the tensor it fills.

    One that has ended holds no tensor: a list of transfers keeps no memory.
    """

    def __init__(self, store: HostStore, number: int, source: Tensor, target: Tensor) -> None:
        self._store, self._number = store, number
        self._source: Tensor | None = source
        self._target: Tensor | None = target
        self._version = source._version
        self._arrived: weakref.ref[Tensor] | None = None

    @torch.no_grad()
    def wait(self) -> Tensor:
        """Block until the data have arrived.

        Raises: RuntimeError in a second call, if the tensor was let go of.
        """
        self._store.log.append(["wait", self._number, 0])
        if self._source is None or self._target is None:
            return self._again()
        target = self._target
        if self._source._version != self._version:
            target.fill_(torch.nan)
        else:
            target.copy_(self._source)
        self._arrived = weakref.ref(target)
        self._source = self._target = None
        return target

    def _again(self) -> Tensor:
        tensor = self._arrived() if self._arrived is not None else None
        if tensor is None:
            raise RuntimeError(
                "the tensor of a transfer must be kept from its first wait(); it was let go of. Keep what "
                "wait() returns."
            )
        return tensor


class HostStore:
    """The host's optimizer state and the account of the link.

    state: one dict per parameter, of "weight" (the master weights), "exp_avg" and "exp_avg_sq".
    log: [kind, number of the transfer, bytes] of each "down", "up" and "wait", in order; "update" with the
        bytes of its gradient, and "device" if it was given a tensor of the device.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.log: list[list[object]] = []
        self.steps = 0
        self._num_transfers = 0
        self.state: list[State] = [
            {
                "weight": w.detach().clone(),
                "exp_avg": torch.zeros_like(w, requires_grad=False),
                "exp_avg_sq": torch.zeros_like(w, requires_grad=False),
            }
            for w in weights
        ]

    def down(self, source: Tensor) -> Transfer:
        """Begin to copy a device tensor into a new host tensor."""
        target = torch.full_like(source, torch.nan, requires_grad=False)
        return self._start("down", source.detach(), target)

    def up(self, source: Tensor, target: Tensor) -> Transfer:
        """Begin to copy a host tensor into a device tensor."""
        return self._start("up", source.detach(), target.detach())

    def note_update(self, grad: Tensor, state: State, device: Iterable[Tensor]) -> None:
        """Log the bytes of the gradient that an update uses up, and whether a tensor is not the host's."""
        self.log.append(["update", -1, grad.nbytes])
        homes = {storage_address(tensor) for tensor in device}
        if any(storage_address(tensor) in homes for tensor in (grad, *state.values())):
            self.log.append(["device", -1, 0])

    def _start(self, kind: str, source: Tensor, target: Tensor) -> Transfer:
        number = self._num_transfers
        self._num_transfers += 1
        self.log.append([kind, number, source.nbytes])
        return Transfer(self, number, source, target)


LR, BETA1, BETA2, EPSILON = 0.05, 0.9, 0.99, 0.1


@torch.no_grad()
def host_adam(state: State, grad: Tensor, step: int) -> None:
    """Update one parameter's state on the host in place; step counts from 1."""
    state["exp_avg"].mul_(BETA1).add_(grad, alpha=1 - BETA1)
    state["exp_avg_sq"].mul_(BETA2).addcmul_(grad, grad, value=1 - BETA2)
    scale = (state["exp_avg_sq"] / (1 - BETA2**step)).sqrt_().add_(EPSILON)
    state["weight"].addcdiv_(state["exp_avg"], scale, value=-LR / (1 - BETA1**step))
