"""Keep the optimizer's state, and its work, on the host: the device holds parameters and gradients only.

A step brings each gradient down over the link, updates the master weights on the host, and sends the new
parameters up. While the host updates one parameter, the next gradient and the last parameter are on the
link. Lab 04. Production code: DeepSpeed `ops/adam/cpu_adam.py` (ZeRO-Offload), whose Adam is vectorised over
all host cores; on NVMe, ZeRO-Infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

Arrived = Callable[[], None]


class HostLink:
    """Copy tensors between device and host, beside computation, and count what went over.

    On CUDA: pinned host memory and one stream a direction. On the CPU, which has no link, the copies are made
    by one thread a direction: the same program, the same account.
    Units: down_bytes (device to host) and up_bytes; num_transfers counts both.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.down_bytes = self.up_bytes = self.num_transfers = 0
        self._threads = {way: ThreadPoolExecutor(1, f"host-link-{way}") for way in ("down", "up")}
        self._streams = {way: torch.cuda.Stream(device) for way in ("down", "up")} if self._is_cuda else {}

    @property
    def _is_cuda(self) -> bool:
        return self.device.type == "cuda"

    def host_tensor(self, shape: Iterable[int], dtype: torch.dtype) -> Tensor:
        """Return uninitialised host memory that the link can reach."""
        return torch.empty(tuple(shape), dtype=dtype, pin_memory=self._is_cuda)

    def down(self, source: Tensor) -> tuple[Tensor, Arrived]:
        """Begin to copy a device tensor to the host; the function returned waits for it."""
        self.down_bytes += source.nbytes
        target = self.host_tensor(source.shape, source.dtype)
        return target, self._copy("down", target, source.detach())

    def up(self, source: Tensor, target: Tensor) -> Arrived:
        """Begin to copy a host tensor into a device tensor; the device waits for it in `Arrived`."""
        self.up_bytes += source.nbytes
        return self._copy("up", target.detach(), source.detach())

    def _copy(self, way: str, target: Tensor, source: Tensor) -> Arrived:
        self.num_transfers += 1
        if self._is_cuda:
            return self._copy_on_stream(way, target, source)
        copied: Future[Tensor] = self._threads[way].submit(target.copy_, source)

        def arrived() -> None:
            copied.result()

        return arrived

    def _copy_on_stream(self, way: str, target: Tensor, source: Tensor) -> Arrived:
        stream = self._streams[way]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
            (source if way == "down" else target).record_stream(stream)
            event = stream.record_event()

        def arrived() -> None:
            if way == "down":
                event.synchronize()  # the host reads it
            else:
                torch.cuda.current_stream(self.device).wait_event(event)

        return arrived


class OffloadedOptimizer(Optimizer):
    """Step any torch optimizer on the host, for parameters that live on a device.

    Use as the optimizer itself; around ZeRO's or FSDP's shards (give it to ZeroOptimizer as the optimizer
    class, or FSDP's parameters), each rank's host holds its 1/n. Schedulers and parameter groups work as
    ever; `param_groups[i]["params"]` are the master weights.
    master_dtype: of the weights the optimizer updates; None: the parameters'. With float32 for a bfloat16
    model, 2 bytes per parameter travel each way.
    Communication over the link: a step brings P gradients down and sends P parameters up, one transfer a
    tensor and way; `link` counts. None between ranks.
    Memory: device P + P gradients; host (K + 1) P, and the tensors on the way: `host_bytes`.
    Oracle: the same optimizer on the device.
    Reference: Ren et al., ZeRO-Offload (arXiv:2101.06840), sections 4 and 5.
    Raises: ValueError if a parameter was changed by anything else since the last step.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        optimizer_class: Callable[..., Optimizer],
        *,
        master_dtype: torch.dtype | None = None,
        **defaults: Any,
    ) -> None:
        given: list[Any] = list(params)
        groups = given if given and isinstance(given[0], dict) else [{"params": given}]
        groups = [{**group, "params": list(group["params"])} for group in groups]
        self._params: list[nn.Parameter] = [param for group in groups for param in group["params"]]
        if not self._params:
            raise ValueError("an optimizer needs parameters; got none. Pass model.parameters().")
        self.link = HostLink(self._params[0].device)
        self._versions: list[int] = []
        masters = iter(self._make_masters(master_dtype))
        host_groups = [{**group, "params": [next(masters) for _ in group["params"]]} for group in groups]
        self.inner = optimizer_class(host_groups, **defaults)
        super().__init__(self.inner.param_groups, self.inner.defaults)
        self.param_groups, self.state = self.inner.param_groups, self.inner.state  # one and the same

    @property
    def host_bytes(self) -> int:
        """Bytes of master weights and optimizer state, all on the host."""
        states = [value for state in self.inner.state.values() for value in state.values()]
        held = [*self._masters, *(value for value in states if isinstance(value, Tensor))]
        return sum(tensor.nbytes for tensor in held)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients on the device."""
        for param in self._params:
            if param.grad is not None:
                param.grad = None if set_to_none else param.grad.zero_()

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update on the host: fetch gradient i + 1, compute i, send parameter i - 1, all at the same time."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_versions()
        todo = [index for index, param in enumerate(self._params) if param.grad is not None]
        coming = self._fetch(todo[0]) if todo else None
        sent: list[Arrived] = []
        for place, index in enumerate(todo):
            assert coming is not None, "fetched before"
            grad, arrived = coming
            coming = self._fetch(todo[place + 1]) if place + 1 < len(todo) else None
            arrived()
            sent.append(self._update(index, grad))
        for arrived in sent:
            arrived()
        self._note_versions()
        return loss

    def refresh_masters(self) -> None:
        """Copy the parameters down: call it after anything but `step` has changed them."""
        for param, master in zip(self._params, self._masters, strict=True):
            values, arrived = self.link.down(param)
            arrived()
            master.detach().copy_(values)
        self._note_versions()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's own state_dict, and the master weights."""
        return {**self.inner.state_dict(), "masters": [master.detach().clone() for master in self._masters]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Read it back, or the plain optimizer's; master weights are then the parameters' values.

        Raises: ValueError that says what differs, if it is another model's.
        """
        self._check_saved(state_dict)
        plain = {key: value for key, value in state_dict.items() if key != "masters"}
        self.inner.load_state_dict(deepcopy(plain))  # torch would share its tensors
        self.param_groups, self.state = self.inner.param_groups, self.inner.state  # torch makes new ones
        self.refresh_masters()
        for master, value in zip(self._masters, state_dict.get("masters", self._masters), strict=True):
            master.detach().copy_(value.detach())

    # ---- parts

    def _check_saved(self, state_dict: dict[str, Any]) -> None:
        """Raise ValueError if a master weight, or a tensor of the state, has not its parameter's shape."""
        masters: list[Tensor] = state_dict.get("masters", self._params)
        if len(masters) != len(self._params):
            raise ValueError(
                f"the state must be of this model; got {len(masters)} master weights for "
                f"{len(self._params)}. Build the model as it was when it was saved."
            )
        wrong = []
        for index, (param, master) in enumerate(zip(self._params, masters, strict=True)):
            entries = state_dict["state"].get(index, {}).values()
            kept = [value for value in entries if isinstance(value, Tensor) and value.dim()]  # no step count
            shapes = [list(value.shape) for value in (master, *kept) if value.shape != param.shape]
            wrong += [f"{index} {shapes[0]} for {list(param.shape)}"] if shapes else []
        if wrong:
            raise ValueError(
                f"the state must be of this model; got shapes: {', '.join(wrong)}. "
                "Build the model as it was when it was saved."
            )

    def _make_masters(self, dtype: torch.dtype | None) -> list[nn.Parameter]:
        self._masters: list[nn.Parameter] = []
        for param in self._params:
            master = self.link.host_tensor(param.shape, dtype or param.dtype)
            self._masters.append(nn.Parameter(master, requires_grad=param.requires_grad))
        self.refresh_masters()
        return self._masters

    def _fetch(self, index: int) -> tuple[Tensor, Arrived]:
        grad = self._params[index].grad
        assert grad is not None, "only parameters with a gradient are fetched"
        return self.link.down(grad)

    def _update(self, index: int, grad: Tensor) -> Arrived:
        """Step one master weight and begin to send it up."""
        master, param = self._masters[index], self._params[index]
        master.grad = grad.to(master.dtype)
        self.inner.step()  # skips all others, which have no gradient
        master.grad = None
        if master.dtype == param.dtype:
            return self.link.up(master, param)
        rounded = self.link.host_tensor(param.shape, param.dtype)
        return self.link.up(rounded.copy_(master.detach()), param)

    def _note_versions(self) -> None:
        self._versions = [param._version for param in self._params]

    def _check_versions(self) -> None:
        changed = [i for i, param in enumerate(self._params) if param._version != self._versions[i]]
        if changed:
            raise ValueError(
                f"only the optimizer may change parameters between steps; got changes of {changed}, "
                "unknown to the masters on the host. Call refresh_masters() after changing them."
            )
