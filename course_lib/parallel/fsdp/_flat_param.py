"""Parameters of one unit as a flat vector of which each rank keeps a part: gather, free, reduce.

The parameter objects stay; only what they point at comes and goes: views of the gathered vector while the
unit computes, nothing between. The vector's storage is freed by resizing it to zero, not by dropping it:
autograd has saved views of it, and they are whole again once it is gathered again. Lab 05;
`engine.py` decides when. Production code: torch `_flat_param.py` (FSDP1), `_fsdp_param_group.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.comm.flat import FlatLayout, all_gather_flat, reduce_scatter_flat, same_memory
from course_lib.comm.mesh import Mesh
from course_lib.parallel._sharded import (
    check_before_step,
    check_elementwise,
    column,
    guarded,
    sharded_gradient,
)

EMPTY = (
    "parameters in FSDP have values only while their unit computes; got {{}} of {} before or after. "
    "Initialise before FSDP(...), or pass init_; checkpoint.fsdp loads weights and gives them whole."
)


@dataclass(slots=True, eq=False)
class Slot:
    """A parameter and every place it is used at: (module, attribute). Two places: tied weights."""

    name: str
    aliases: list[str]
    param: nn.Parameter
    places: list[tuple[nn.Module, str]]
    stand_in: Tensor | None = None  # what the places hold while the parameter has no values

    def show(self, tensor: Tensor | None) -> None:
        """Let the modules find the parameter, or its stand-in, under its name."""
        for module, attribute in self.places:
            module.__dict__[attribute] = tensor


@dataclass(frozen=True, kw_only=True)
class Wire:
    """What travels, and between whom. None: the dtype of the parameters, the mean over all ranks.

    param_dtype: of gathered parameters, hence of the computation and of fresh gradients.
    reduce_dtype: in which gradients are summed; divisor: by what the sum is divided.
    axes: of the mesh, over which parameters are cut.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    divisor: float | None = None
    axes: tuple[str, ...] = ("dp_shard",)


class Reduction:
    """Gradients of one flat vector on the wire: summed over the shards' axes, then over dp_replicate."""

    def __init__(self, flat: FlatParam, message: Tensor) -> None:
        self.flat, self.is_over_shards = flat, True
        self.reduced = message.new_empty(flat.layout.shard_numel)
        self.work = reduce_scatter_flat(self.reduced, message, flat.group, async_op=True)

    def wait(self) -> None:
        """Wait for what is on the wire."""
        if self.work is not None:
            self.work.wait()
        self.work = None

    def advance(self) -> bool:
        """Wait; begin the sum over dp_replicate (True), or add the mean to the gradients (False)."""
        self.wait()
        mesh, was_over_shards, self.is_over_shards = self.flat.mesh, self.is_over_shards, False
        if was_over_shards and mesh.size("dp_replicate") > 1:
            self.work = dist.all_reduce(self.reduced, group=mesh.group("dp_replicate"), async_op=True)
            return True
        self.flat.add_gradient(self.reduced)
        return False


class FlatParam:
    """The parameters of one unit with one dtype and one requires_grad, sharded over the mesh's `axes`.

    shard: this rank's part, in the parameters' own dtype.
    parts: what the optimizer sees: views of the shard, one for each parameter, with the mean gradient.
    Layout: shard [S/n] Shard, padded; between gather and free the parameters are Replicate.
    Communication: all_gather S, reduce_scatter S; over dp_replicate an all_reduce of S/n.
    Memory: S/n; S more while gathered, in param_dtype; S more for gradients on the way.
    """

    def __init__(self, slots: Sequence[Slot], mesh: Mesh, wire: Wire) -> None:
        self.slots = list(slots)
        self.params = [slot.param for slot in slots]
        self.mesh, self.axes = mesh, wire.axes
        self.group = mesh.group(*self.axes)
        self.divisor = wire.divisor or mesh.size(*self.axes) * mesh.size("dp_replicate")
        self.trains = self.params[0].requires_grad
        self.layout = FlatLayout.of(self.params, mesh.size(*self.axes))
        self._work: dist.Work | None = None
        self._message: Tensor | None = None
        self._flat_grad: Tensor | None = None  # of this backward, in param_dtype
        self._unsent: Tensor | None = None  # of earlier ones under no_sync, in reduce_dtype
        self._grad_views: list[Tensor] = []
        self._gathered_version: int | None = None  # of what is here or on the way
        own_dtype = self.params[0].dtype
        self.reduce_dtype = wire.reduce_dtype or wire.param_dtype or own_dtype
        self._shard_from(own_dtype, wire.param_dtype or own_dtype)

    @property
    def version(self) -> int:
        """A number that changes when the parameters do."""
        return self.shard._version

    @torch.no_grad()
    def _shard_from(self, own_dtype: torch.dtype, param_dtype: torch.dtype) -> None:
        """Cut the values of the mesh's first rank; from here on the parameters are empty until gathered."""
        device = self.params[0].device
        flat = torch.empty(self.layout.padded_numel, dtype=own_dtype, device=device)
        self.layout.flatten_(flat, self.params)
        for axes in (self.axes, ("dp_replicate",)):
            if self.mesh.size(*axes) > 1:
                dist.broadcast(flat, group=self.mesh.group(*axes), group_src=0)
        start, stop = self.local_range()
        self.shard = nn.Parameter(flat[start:stop].clone(), requires_grad=self.trains)
        del flat
        for slot in self.slots:
            anything = self.shard.detach()[0].expand(slot.param.shape)
            slot.stand_in = guarded(anything, EMPTY.format(slot.name))
        self._part_slices = self.layout.parts(start, stop)
        self.parts = [
            column(self.shard.detach()[part], len(shape), requires_grad=self.trains)
            for part, shape in zip(self._part_slices, self.layout.shapes, strict=True)
        ]
        for part in self.parts:
            check_before_step(part, self._before_step)
        self.full = torch.empty(self.layout.padded_numel, dtype=param_dtype, device=device)
        self._full_bytes = self.full.untyped_storage().nbytes()
        self._views = self.layout.unflatten(self.full)
        self._nothing = torch.empty(0, dtype=param_dtype, device=device)
        self._point_nowhere()

    def local_range(self) -> tuple[int, int]:
        """Return which elements of the flat vector this rank keeps."""
        return self.layout.shard_range(self.mesh.rank(*self.axes))

    # ---- parameters

    def begin_gather(self) -> None:
        """Begin to bring the parameters here, unless they are here or on the way and as they are now."""
        if self._gathered_version == self.version:
            return
        self.free()
        self.check_shard()
        self._gathered_version = self.version
        self.full.untyped_storage().resize_(self._full_bytes)
        self._message = self.shard.detach().to(self.full.dtype)
        self._work = all_gather_flat(self.full, self._message, self.group, async_op=True)

    def wait_gather(self) -> None:
        """Return when the parameters point at their values."""
        if self._message is not None:
            self._end_gather()
            for slot, view in zip(self.slots, self._views, strict=True):
                slot.param.data = view
                slot.show(slot.param)

    def free(self) -> None:
        """Give the gathered parameters back, also those on the way."""
        if self._gathered_version is not None:
            self._end_gather()
            self._point_nowhere()

    def _end_gather(self) -> None:
        if self._work is not None:
            self._work.wait()
        self._work = self._message = None

    def _point_nowhere(self) -> None:
        for slot in self.slots:
            slot.param.data = self._nothing
            slot.show(slot.stand_in)
        self.full.untyped_storage().resize_(0)
        self._gathered_version = None

    # ---- gradients

    def open_gradients(self) -> None:
        """Let backward add the unit's gradients into one flat vector."""
        if not self.trains:
            return
        self._forget_zeroed()
        if self._flat_grad is None:
            self._flat_grad = torch.zeros_like(self.full)
            self._grad_views = self.layout.unflatten(self._flat_grad)
        for param, view in zip(self.params, self._grad_views, strict=True):
            param.grad = view

    def close_gradients(self, *, send: bool) -> Reduction | None:
        """Take the gradients from the parameters; begin to reduce them, or keep them here."""
        if self._flat_grad is None:
            return None
        for slot, view in zip(self.slots, self._grad_views, strict=True):
            grad, slot.param.grad = slot.param.grad, None
            if grad is not None and not same_memory(grad, view):
                raise ValueError(
                    f"gradients must be added where FSDP put them; got a new one for {slot.name}. "
                    "Do not use create_graph=True, and do not set .grad during backward."
                )
        if not send:
            if self._flat_grad.dtype != self.reduce_dtype:  # as bfloat16 they would lose what is small
                self._unsent = self._with_unsent()
            for part in self.parts:
                if part.grad is None:  # something that zero_grad can forget
                    part.grad = sharded_gradient(torch.zeros_like(part))
            return None
        return Reduction(self, self._with_unsent())

    def _with_unsent(self) -> Tensor:
        """Return all gradients that were not sent, in reduce_dtype, and keep none."""
        flat_grad, unsent = self._flat_grad, self._unsent
        assert flat_grad is not None, "backward has been here"
        self._flat_grad, self._unsent, self._grad_views = None, None, []
        return flat_grad.to(self.reduce_dtype) if unsent is None else unsent.add_(flat_grad)

    @property
    def _is_unsent(self) -> bool:
        return self._flat_grad is not None or self._unsent is not None

    def _forget_zeroed(self) -> None:
        """Forget unsent gradients if zero_grad was called since, unless backward still adds to them."""
        if self._is_unsent and all(p.grad is None for p in (*self.parts, *self.params)):
            self.drop_gradients()

    @torch.no_grad()
    def add_gradient(self, reduced: Tensor) -> None:
        """Add this rank's part of the sum, divided, to the gradients of its parts."""
        mean = reduced.to(self.shard.dtype).div_(self.divisor)
        for part, where in zip(self.parts, self._part_slices, strict=True):
            local = mean[where].view(part.shape)
            if part.grad is None:
                part.grad = sharded_gradient(local)
            else:
                part.grad.add_(local)
            for hook in list((getattr(part, "_post_accumulate_grad_hooks", None) or {}).values()):
                hook(part)

    def drop_gradients(self) -> None:
        """Forget what an unfinished backward left."""
        for param in self.params:
            param.grad = None
        self._flat_grad, self._unsent, self._grad_views = None, None, []

    # ---- checks

    def _before_step(self, optimizer: Optimizer) -> None:
        """Stop an optimizer that looks at whole tensors, or would leave gradients out."""
        check_elementwise(optimizer)
        self._forget_zeroed()
        if self._is_unsent:
            raise ValueError(
                f"gradients must be sent before the optimizer steps; got those of "
                f"{self.slots[0].name} and others unsent. Run the last backward outside no_sync()."
            )

    def check_shard(self) -> None:
        """Raise ValueError if the shard or a parameter is not what was sharded."""
        for slot, part, where in zip(self.slots, self.parts, self._part_slices, strict=True):
            if part.numel() != where.stop - where.start or (
                part.numel() and not same_memory(part, self.shard[where])
            ):
                raise ValueError(
                    f"a rank's part of {slot.name} must stay where FSDP put it; got one of shape "
                    f"{list(part.shape)} and {part.dtype} elsewhere. Move or convert the model earlier."
                )
            if part.requires_grad != self.trains and torch.is_grad_enabled():
                raise ValueError(
                    f"parameters must be frozen and unfrozen before FSDP(...); got a change of {slot.name} "
                    "since. Wrap the model after it."
                )
            if part._backward_hooks:
                raise ValueError(
                    f"a parameter's hook must get what this rank holds of the mean; got one of {slot.name} "
                    "for the whole gradient. Use register_post_accumulate_grad_hook."
                )
        for index, slot in enumerate(self.slots):
            for module, name in slot.places:
                now = module.__dict__.get(name)
                if now is not slot.stand_in or module._parameters.get(name) is not self.parts[index]:
                    raise ValueError(self._changed(slot, getattr(module, name, None)))
                if slot.param.numel():
                    raise ValueError(self._changed(slot, slot.param))

    def _changed(self, slot: Slot, now: object) -> str:
        index = self.slots.index(slot)
        got = f"shape {list(now.shape)}" if isinstance(now, Tensor) else type(now).__name__
        return (
            f"parameters must stay as they were sharded; got {slot.name} replaced by one of {got}, sharded "
            f"as {list(self.layout.shapes[index])}. Change the model before wrapping, or load a checkpoint."
        )
