"""Fully sharded data parallelism (ZeRO stage 3, HSDP): parameters, gradients and optimizer state in shards.

This file decides when a unit is gathered, freed and reduced: hooks around each unit's forward and on the
gradient of its output. `_flat_param.py` is what moves; `_units.py` cuts the model. Units a, b, c, prefetch=1
(G: all_gather begins, w: waits for it, F: freed, R: reduce_scatter begins):

    forward     G(a) G(b) w(a) [a] F(a)  |  G(c) w(b) [b] F(b)  |  w(c) [c], which stays: it is next
    backward    G(b) [c]  |  F(c) G(a) R(c) w(b) [b]  |  F(b) R(b) w(a) [a]  |  F(a) R(a), wait for all R

With prefetch=0 each G stands right before its w, and nothing hides it; with 2, two units are on their way. In
the first step prefetch follows the model's order, then that of the last forward. That is 3 moves of P
elements a step against DDP's 2, for P/n of memory. Lab 05. Production code: torch
`torch/distributed/fsdp/_fully_shard` (FSDP2), which shards each parameter along dim 0 instead of flat units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook
from torch.utils._pytree import tree_leaves, tree_map

from course_lib.comm.mesh import Mesh, make_mesh
from course_lib.parallel._sharded import clip_sharded_norm_
from course_lib.parallel.fsdp._flat_param import FlatParam, Reductions, Wire
from course_lib.parallel.fsdp._units import Unit, cut_into_units


@dataclass(slots=True, eq=False)
class _Call:
    """One run of a unit in a forward, until its backward is over."""

    unit: Unit
    started_at: int
    versions: list[int]  # of the parameters it computed with
    ended_at: int = 0
    awaits_backward: bool = False


@dataclass(slots=True, eq=False)
class _Run:
    """Where the step is, and in which order units run: as in the last forward, at first as in the model."""

    forward_order: list[Unit]
    backward_order: list[Unit] = field(default_factory=list)
    phase: Literal["idle", "forward", "backward"] = "idle"
    clock: int = 0
    calls: list[_Call] = field(default_factory=list)  # of this forward, in the order they began
    inside: list[_Call] = field(default_factory=list)  # that have begun and not ended
    open: list[_Call] = field(default_factory=list)  # whose backward has begun
    reductions: Reductions = field(default_factory=Reductions)

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def learn_order(self) -> None:
        """Forward is over: it will repeat itself, and backward will go the other way."""
        self.forward_order = list(dict.fromkeys(call.unit for call in self.calls))
        waiting = [call for call in self.calls if call.awaits_backward]
        waiting.sort(key=lambda call: -call.ended_at)
        self.backward_order = list(dict.fromkeys(call.unit for call in waiting))


class FSDP(nn.Module):
    """Train a model of which every rank keeps 1/n; gather each unit only while it computes.

    Use: model = FSDP(model, units=model.blocks); optimizer = AdamW(model.parameters()); then as ever:
    zero_grad(), loss = f(model(x)), loss.backward(), step(). The parameters have the model's own names; each
    holds the elements that this rank keeps, as a column of as many dims: [k, 1] of a matrix, [k] of a vector.
    units: modules gathered as one, at any depth; what no unit contains, the model itself gathers (the root
    unit). Inner units are no part of the units around them.
    mesh: axes dp_shard and dp_replicate (HSDP); None shards over the world. axes: shard over several, such as
    ("dp_shard", "cp").
    reshard_after_forward: False keeps units gathered until their backward: 2 moves of P a step, P of memory.
    gradient_divisor: the sum over all ranks is divided by it; None: by their number, which gives the mean.
    prefetch: how many units ahead are gathered: 0 overlaps nothing, 1 hides a gather behind one unit.
    init_: for models on the meta device: fills one module's own parameters (default: reset_parameters).
    Layout (local shapes): shards Shard over dp_shard, Replicate over dp_replicate; the batch Shard(0).
    Communication, P parameters: a step 2 all_gathers and 1 reduce_scatter a unit, one all_gather less for the
    last unit and for the root, which stay; in all at most 3 P. With dp_replicate an all_reduce of P/n more.
    At construction each unit is broadcast from the mesh's first rank, as are buffers.
    Memory: P/n parameters, P/n gradients, K P/n optimizer state; parameters at most 1 + prefetch units more
    (beside the units around them), gradients at most 2 units more on the way.
    Several forwards may come before their backwards. Gradients of several backwards add up; under `no_sync`
    unsent, at full size. A parameter unused in a unit that ran gets gradient zero; the parameters of a unit
    that did not run keep None, as in one process.
    Oracle: the module on the whole batch, where the shards are equal.
    Reference: Zhao et al., PyTorch FSDP (arXiv:2304.11277), sections 3 and 4; ZeRO (arXiv:1910.02054).
    Raises: ValueError for a parameter in two units, parameters changed between a forward and its backward,
    moved or replaced, an optimizer that holds the unsharded parameters or looks at whole tensors.
    """

    def __init__(
        self,
        module: nn.Module,
        units: Sequence[nn.Module] | nn.ModuleList = (),
        *,
        mesh: Mesh | None = None,
        prefetch: int = 1,
        param_dtype: torch.dtype | None = None,
        reduce_dtype: torch.dtype | None = None,
        reshard_after_forward: bool = True,
        gradient_divisor: float | None = None,
        axes: tuple[str, ...] = ("dp_shard",),
        init_: Callable[[nn.Module], None] | None = None,
    ) -> None:
        super().__init__()
        if prefetch < 0:
            raise ValueError(f"prefetch must be 0 or more units; got {prefetch}. 1 overlaps one gather.")
        mesh = mesh or make_mesh(dp_shard=dist.get_world_size())
        if not set(axes) & set(mesh.sizes):
            raise ValueError(f"mesh must have an axis {axes[0]}; got {mesh.sizes}. Add it to make_mesh.")
        wire = Wire(
            param_dtype=param_dtype, reduce_dtype=reduce_dtype, gradient_divisor=gradient_divisor, axes=axes
        )
        self.axes, self.reshard_after_forward = axes, reshard_after_forward
        self.module, self.mesh, self.prefetch, self.param_dtype = module, mesh, prefetch, param_dtype
        self._units = cut_into_units(module, units, mesh, wire, init_)
        self._root = self._units[0]
        self._run = _Run([unit for unit in self._units if unit.flats])
        self._sync = True
        for unit in self._units:
            unit.module.register_forward_pre_hook(partial(self._before_forward, unit))
            unit.module.register_forward_hook(partial(self._after_forward, unit))

    # ---- use

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on this rank's shard of the batch; floating inputs become param_dtype."""
        run = self._run
        if run.phase != "idle":  # the last one failed
            self._reset()
        for flat in self.flats():
            flat.free_if_changed()
        run.phase, run.calls, run.inside = "forward", [], []
        try:
            if self.param_dtype is not None:
                args, kwargs = tree_map(self._cast, (args, kwargs))
            out = self.module(*args, **kwargs)
        finally:
            run.phase = "idle"
        if torch.is_grad_enabled():
            run.learn_order()
        kept = {call.unit for call in run.calls if call.awaits_backward and self._stays(call.unit)}
        for unit in self._units:
            if unit not in kept:  # gathered for nothing
                _free(unit)
        run.calls = []
        return out

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backwards inside add up unsent, at full size; the next one outside sends the total.

        Communication: the gathers as ever, no reduce_scatter. Memory: P more for the gradients.
        Raises: ValueError if an optimizer steps while gradients are unsent.
        """
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def clip_grad_norm_(self, max_norm: float, *, norm_axes: tuple[str, ...] = ()) -> Tensor:
        """Scale all gradients so that their global 2-norm is at most max_norm; return the norm before.

        As torch's clip_grad_norm_ of `parameters()`, with one all_reduce instead of one a parameter.
        norm_axes: further axes of the mesh whose ranks hold other parts of the model, such as pp.
        Communication: one all_reduce of one number. A NaN anywhere makes the norm and all gradients NaN.
        """
        grads = [param.grad for param in self.parameters() if param.grad is not None]
        device = next(self.parameters(), torch.empty(0)).device
        return clip_sharded_norm_(grads, max_norm, device, self.mesh.group(*self.axes, *norm_axes))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's part of every parameter, under its name in the unsharded model."""
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def flats(self) -> list[FlatParam]:
        """Return the flat parameters of all units, in the model's order."""
        return [flat for unit in self._units for flat in unit.flats]

    def _cast(self, value: Any) -> Any:
        return (
            value.to(self.param_dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        )

    # ---- when

    def _before_forward(self, unit: Unit, _module: nn.Module, _args: Any) -> None:
        run = self._run
        if run.phase == "backward":  # recomputation: backward has gathered the unit
            self._gather(unit, run.backward_order)
            return
        if run.phase == "idle":
            raise ValueError(
                f"a unit must run inside the model's forward; got unit {unit.name!r} alone. "
                "Call the FSDP module."
            )
        call = _Call(unit, run.tick(), [flat.version for flat in unit.flats])
        run.calls.append(call)
        run.inside.append(call)
        self._gather(unit, run.forward_order)

    def _after_forward(self, unit: Unit, _module: nn.Module, _args: Any, out: Any) -> None:
        run = self._run
        if run.phase == "backward":
            return
        call = run.inside.pop()
        call.ended_at = run.tick()
        will_train = torch.is_grad_enabled()
        if not (will_train and self._stays(unit)):
            _free(unit)
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if will_train and tensors and unit.flats:
            call.awaits_backward = True
            register_multi_grad_hook(tensors, partial(self._before_backward, call), mode="any")

    def _stays(self, unit: Unit) -> bool:
        """Whether a unit stays gathered after its forward: the root and the last one are next in backward."""
        is_next = unit is self._root or unit in self._run.forward_order[-1:]
        return is_next or not self.reshard_after_forward

    def _before_backward(self, call: _Call, _grad: Tensor) -> None:
        """The gradient of a unit's output is there: what ran after the unit has finished its backward."""
        run, unit = self._run, call.unit
        if call.versions != [flat.version for flat in unit.flats]:
            raise ValueError(
                "parameters must not change between a forward and its backward; got a backward of unit "
                f"{unit.name!r} after a step. Run forward again."
            )
        if run.phase == "idle":
            run.phase = "backward"
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        over = [other for other in run.open if other.started_at > call.ended_at]
        self._gather(unit, run.backward_order, over)
        run.open.append(call)
        for flat in unit.flats:
            flat.open_gradients()

    def _end_of_backward(self) -> None:
        run = self._run
        self._send(self._close(run.open))
        run.reductions.finish()
        self._reset()

    def _gather(self, unit: Unit, order: Sequence[Unit], over: Sequence[_Call] = ()) -> None:
        """Wait for a unit's parameters, the next ones of `order` and gradients of those `over` on their way.

        First free, then gather: memory. First gather, then reduce: compute waits for gathers only.
        """
        closed = self._close(over)
        position = order.index(unit) if unit in order else len(order)
        for needed in (unit, *order[position + 1 : position + 1 + self.prefetch]):
            for flat in needed.flats:
                flat.launch_gather()
        self._send(closed)
        for flat in unit.flats:
            flat.wait_gather()

    def _close(self, calls: Sequence[_Call]) -> list[FlatParam]:
        """Free units whose backward is over; return what they hold in the order they finished."""
        closed = dict.fromkeys(call.unit for call in sorted(calls, key=lambda call: -call.ended_at))
        self._run.open = [call for call in self._run.open if call not in calls]
        for unit in closed:
            _free(unit)
        return [flat for unit in closed for flat in unit.flats]

    def _send(self, flats: Sequence[FlatParam]) -> None:
        """Take the gradients, and begin to reduce them unless under no_sync."""
        for flat in flats:
            flat.close_gradients()
            if self._sync:
                self._run.reductions.begin(flat)

    def _reset(self) -> None:
        """End a backward, also one that failed, or a forward that did."""
        run = self._run
        failed = run.reductions.abandon() or run.open
        for unit in self._units:
            _free(unit)
            for flat in unit.flats if failed else ():
                flat.drop_gradients()
        run.phase, run.open = "idle", []


def _free(unit: Unit) -> None:
    for flat in unit.flats:
        flat.free()
