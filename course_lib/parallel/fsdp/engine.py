"""Fully sharded data parallelism (ZeRO stage 3, HSDP): parameters, gradients and optimizer state in shards.

The model is cut into units. A unit's parameters are gathered just before it computes, in forward and again
in backward, and freed just after; its gradients are reduce_scattered as soon as its backward is over. While
one unit computes, the next ones are gathered and the gradients of the last are on the wire. That is 3 moves
of P elements a step against DDP's 2, for P/n of memory. Lab 05. Production code: torch
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
from course_lib.parallel.fsdp._flat_param import FlatParam, Wire
from course_lib.parallel.fsdp._units import cut_into_units

_ELSEWHERE = (
    "a sharded model is saved whole or in shards, told by parameter; got a call of {}(). "
    "Use full_state_dict, sharded_state_dict and load_state_dict_ of checkpoint.fsdp."
)


@dataclass(slots=True, eq=False)
class _Unit:
    """What is gathered and freed together, and when it ran in this forward."""

    name: str
    module: nn.Module
    flats: list[FlatParam]
    started_at: int = 0  # 0: not in this forward
    ended_at: int = 0
    awaits_backward: bool = False
    is_open: bool = False  # between its backward's begin and end


@dataclass(slots=True, eq=False)
class _Run:
    """Where the step is, and in which order units run: as in the last forward, at first as in the model."""

    units: list[_Unit]  # that have parameters
    forward_order: list[_Unit]
    backward_order: list[_Unit] = field(default_factory=list)
    phase: Literal["idle", "forward", "backward"] = "idle"
    generation: int = 0  # of the forward
    clock: int = 0
    reducing: list[FlatParam] = field(default_factory=list)  # on the wire over dp_shard
    advanced: list[FlatParam] = field(default_factory=list)  # over dp_replicate

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def learn_order(self) -> None:
        """Forward is over: it will repeat itself, and backward will go the other way."""
        ran = [unit for unit in self.units if unit.started_at]
        self.forward_order = sorted(ran, key=lambda unit: unit.started_at)
        waiting = [unit for unit in ran if unit.awaits_backward]
        self.backward_order = sorted(waiting, key=lambda unit: -unit.ended_at)


class FSDP(nn.Module):
    """Train a model of which every rank keeps 1/n; gather each unit only while it computes.

    Use: model = FSDP(model, units=model.blocks); optimizer = AdamW(model.parameters()); then as ever:
    zero_grad(), loss = f(model(x)), loss.backward(), step(). The parameters are the shards of flat vectors.
    units: modules gathered as one, at any depth; what no unit contains, the model itself gathers (the root
    unit). Inner units are no part of the units around them.
    mesh: axes dp_shard and dp_replicate (HSDP); None shards over the world.
    prefetch: how many units ahead are gathered: 0 overlaps nothing, 1 hides a gather behind one unit.
    placement: "shards" cuts each unit evenly; "owners" gives units to ranks in turn, and broadcasts.
    init_: for models on the meta device: fills one module's own parameters (default: reset_parameters).
    Layout (local shapes): shards Shard over dp_shard, Replicate over dp_replicate; the batch Shard(0).
    Communication, P parameters: a step 2 all_gathers and 1 reduce_scatter a unit, one all_gather less for the
    last unit and for the root, which stay; in all at most 3 P. With dp_replicate an all_reduce of P/n more.
    At construction each unit is broadcast from the mesh's first rank, as are buffers.
    Memory: P/n parameters, P/n gradients, K P/n optimizer state; parameters at most 1 + prefetch units more
    (beside the units around them), gradients at most 2 units more on the way.
    Gradients of several backwards add up; under `no_sync` unsent, at full size. A parameter unused in a unit
    that ran gets gradient zero; the parameters of a unit that did not run keep None, as in one process.
    Oracle: the module on the whole batch, where the shards are equal.
    Reference: Zhao et al., PyTorch FSDP (arXiv:2304.11277), sections 3 and 4; ZeRO (arXiv:1910.02054).
    Raises: ValueError for a parameter in two units, a unit that runs twice in one forward, a backward
    without its forward, changed parameters, an optimizer that holds the unsharded parameters.
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
        placement: Literal["shards", "owners"] = "shards",
        init_: Callable[[nn.Module], None] | None = None,
    ) -> None:
        super().__init__()
        if prefetch < 0:
            raise ValueError(f"prefetch must be 0 or more units; got {prefetch}. 1 overlaps one gather.")
        mesh = mesh or make_mesh(dp_shard=dist.get_world_size())
        if "dp_shard" not in mesh.sizes:
            raise ValueError(f"mesh must have an axis dp_shard; got {mesh.sizes}. Add it to make_mesh.")
        wire = Wire(param_dtype=param_dtype, reduce_dtype=reduce_dtype)
        self.module, self.mesh, self.prefetch, self.param_dtype = module, mesh, prefetch, param_dtype
        cut = cut_into_units(module, units, mesh, wire, placement, init_)
        self._units = [_Unit(name, inner, flats) for name, inner, flats in cut]
        self._root = self._units[0]
        with_params = [unit for unit in self._units if unit.flats]
        self._run = _Run(with_params, with_params)
        self._sync = True
        for unit in self._units:
            unit.module.register_forward_pre_hook(partial(self._before_forward, unit))
            unit.module.register_forward_hook(partial(self._after_forward, unit))

    # ---- use

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on this rank's shard of the batch; floating inputs become param_dtype."""
        self._reset()
        self._run.phase = "forward"
        try:
            if self.param_dtype is not None:
                args, kwargs = tree_map(self._cast, (args, kwargs))
            out = self.module(*args, **kwargs)
        finally:
            self._run.phase = "idle"
        if torch.is_grad_enabled():
            self._run.learn_order()
        for unit in self._units:
            if not unit.awaits_backward:  # gathered for nothing
                _free(unit)
        return out

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backwards inside add up unsent; the next one outside sends the total."""
        before, self._sync = self._sync, False
        try:
            yield
        finally:
            self._sync = before

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scale all gradients so that their global 2-norm is at most max_norm; return the norm before.

        Communication: one all_reduce of one number over dp_shard. A NaN anywhere makes the norm and all
        gradients NaN.
        """
        grads = [flat.shard.grad for flat in self.flats() if flat.shard.grad is not None]
        device = next(self.parameters(), torch.empty(0)).device
        return clip_sharded_norm_(grads, max_norm, device, self.mesh.group("dp_shard"))

    def flats(self) -> list[FlatParam]:
        """Return the flat parameters of all units, in the model's order."""
        return [flat for unit in self._units for flat in unit.flats]

    def _cast(self, value: Any) -> Any:
        return (
            value.to(self.param_dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        )

    def state_dict(self, *_: Any, **__: Any) -> Any:
        """Refused: it would save shards under names that no other model has."""
        raise ValueError(_ELSEWHERE.format("state_dict"))

    def load_state_dict(self, *_: Any, **__: Any) -> Any:
        """Refused, as `state_dict` is."""
        raise ValueError(_ELSEWHERE.format("load_state_dict"))

    # ---- when

    def _before_forward(self, unit: _Unit, _module: nn.Module, _args: Any) -> None:
        run = self._run
        if run.phase == "backward":  # recomputation: backward has gathered the unit
            self._gather(unit, run.backward_order)
            return
        if run.phase == "idle":
            raise ValueError(
                f"a unit must run inside the model's forward; got unit {unit.name!r} alone. "
                "Call the FSDP module."
            )
        if unit.started_at and torch.is_grad_enabled():
            raise ValueError(
                f"a unit must run once in a forward; got unit {unit.name!r} twice. Make the module that "
                "calls it twice the unit."
            )
        unit.started_at = run.tick()
        self._gather(unit, run.forward_order)

    def _after_forward(self, unit: _Unit, _module: nn.Module, _args: Any, out: Any) -> None:
        run = self._run
        if run.phase == "backward":
            return
        unit.ended_at = run.tick()
        will_train = torch.is_grad_enabled()
        is_next = unit is self._root or unit in run.forward_order[-1:]  # in backward
        if not (will_train and is_next):
            _free(unit)
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor) and leaf.requires_grad]
        if will_train and tensors and unit.flats:
            unit.awaits_backward = True
            hook = partial(self._before_backward, unit, run.generation)
            register_multi_grad_hook(tensors, hook, mode="any")

    def _before_backward(self, unit: _Unit, generation: int, _grad: Tensor) -> None:
        """The gradient of a unit's output is there: what ran after the unit has finished its backward."""
        run = self._run
        if generation != run.generation or not unit.awaits_backward:
            raise ValueError(
                f"a backward must follow its own forward; got one of unit {unit.name!r} without. Run forward "
                "again before a second backward, and backward before the next forward."
            )
        if run.phase == "idle":
            run.phase = "backward"
            torch.autograd.Variable._execution_engine.queue_callback(self._end_of_backward)
        self._gather(unit, run.backward_order, [u for u in self._units if u.started_at > unit.ended_at])
        unit.is_open, unit.awaits_backward = True, False
        for flat in unit.flats:
            flat.open_gradients()

    def _end_of_backward(self) -> None:
        self._send(self._close(self._units))
        for flat in self._run.reducing:
            flat.advance_reduce()
        for flat in self._run.advanced + self._run.reducing:
            flat.finish_reduce()
        self._run.reducing, self._run.advanced = [], []
        self._reset()

    def _gather(self, unit: _Unit, order: Sequence[_Unit], over: Sequence[_Unit] = ()) -> None:
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

    def _close(self, units: Sequence[_Unit]) -> list[FlatParam]:
        """Free units whose backward is over; return them in the order they finished."""
        closed = sorted((unit for unit in units if unit.is_open), key=lambda unit: -unit.ended_at)
        for unit in closed:
            unit.is_open = False
            _free(unit)
        return [flat for unit in closed for flat in unit.flats]

    def _send(self, flats: Sequence[FlatParam]) -> None:
        """Take the gradients, and begin to reduce them unless under no_sync."""
        run = self._run
        for flat in flats:
            flat.close_gradients()
            if not (self._sync and flat.launch_reduce()):
                continue
            for earlier in run.reducing:  # had the time of a unit's backward
                earlier.advance_reduce()
            for earlier in run.advanced:
                earlier.finish_reduce()
            run.advanced, run.reducing = run.reducing, [flat]

    def _reset(self) -> None:
        """Forget the last forward, also one whose backward never came or failed."""
        run = self._run
        failed = run.reducing or run.advanced or any(unit.is_open for unit in self._units)
        for unit in self._units:
            _free(unit)
            unit.started_at, unit.ended_at, unit.awaits_backward, unit.is_open = 0, 0, False, False
            for flat in unit.flats if failed else ():
                flat.drop_gradients()
        run.phase, run.generation, run.clock = "idle", run.generation + 1, 0
        run.reducing, run.advanced = [], []


def _free(unit: _Unit) -> None:
    for flat in unit.flats:
        flat.free()
