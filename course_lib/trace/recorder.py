"""Record the trace of the rank this runs in, as a listener of `intercept.py`.

The per-operation path is kept lean: one tuple an operation, facts about an operation looked up once, no stack
walks. Neither tensors nor `Work` objects are kept alive. While it records, the garbage collector runs only at
marks and after backward, so that memory does not depend on when Python feels like
collecting. See the package's docstring for what is seen and what is not.
"""

import dataclasses
import gc
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import Parameter
from torch.nn.modules import module as nn_module
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from course_lib.trace import marks
from course_lib.trace.calls import CommCall
from course_lib.trace.events import POLLED, Alloc, Backward, Compute, Event, Free, Launch, Mark, Wait
from course_lib.trace.flops import Flops, flops_counter
from course_lib.trace.intercept import Listener
from course_lib.trace.memory import (
    CATEGORIES,
    GRADIENTS,
    OPTIMIZER,
    MemoryTracker,
    TrackedStorage,
    tensors_in,
)
from course_lib.trace.queries import RankTrace

_NEVER_READ_SELF = {"copy_", "zero_", "fill_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_"}
_READ_ROWS_ONLY = {"embedding", "gather", "index_select", "index", "take"}
_NO_DATA = {"_unsafe_view", "_reshape_alias", "lift_fresh", "resize_", "set_", "empty_strided"}
_GRADIENT_MAKERS = {"detach", "clone", "new_empty_strided", "empty_strided", "empty_like"}
_RELEASE_S, _SETTLE_S = 20e-6, 1e-3  # for a communication thread to let go of its tensors
_DTYPE_NAMES: dict[torch.dtype, str] = {}
_autograd: Any = torch.autograd
_now_s = time.perf_counter


@dataclasses.dataclass(slots=True)
class _Op:
    """What is the same at every call of an operation."""

    name: str
    moves_data: bool
    reads_self: bool
    reads_rows: bool
    may_make_gradient: bool
    may_resize: bool
    is_special: bool
    flops: Flops | None


class Recorder(Listener):
    """Record this rank's operations, communication and memory between `__enter__` and `__exit__`."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.memory = MemoryTracker(self._alloc, self._free)
        self._rows: list[tuple[Any, ...]] = []
        self._late_frees: list[tuple[int, tuple[Any, ...]]] = []  # (position in _rows, row)
        self._in_flight: dict[int, list[TrackedStorage]] = {}  # by id of the launch
        self._ops: dict[Any, _Op] = {}
        self._phase = "forward"
        self._depth = 0
        self._t_s = self._wait_s = self._start_s = self._end_s = 0.0
        self._undo: list[Callable[[], None]] = []

    # ---- on and off

    def __enter__(self) -> "Recorder":
        self._undo = [self._patch_backward(), self._patch_resize(), *self._register_hooks(), _quiet_gc()]
        marks.marker = self.mark
        self._start_s = _now_s()
        return self

    def __exit__(self, *_: object) -> None:
        marks.marker = None
        time.sleep(_SETTLE_S)
        self.memory.sample_gradients()
        self.memory.book_late_frees()
        self._end_s = _now_s()
        while self._undo:
            self._undo.pop()()

    def _patch_backward(self) -> Callable[[], None]:
        """Wrap the one function through which backward, autograd.grad and Tensor.backward go."""
        run = _autograd._engine_run_backward

        def traced_run(roots: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
            for tensor in tensors_in(gradients):
                self.memory.exclude_activation(tensor)
            self._backward_begins()
            try:
                return run(roots, gradients, *args, **kwargs)
            finally:
                self._backward_ends()

        _autograd._engine_run_backward = traced_run

        def undo() -> None:
            _autograd._engine_run_backward = run

        return undo

    def _patch_resize(self) -> Callable[[], None]:
        resize = torch.UntypedStorage.resize_

        def traced_resize(storage: torch.UntypedStorage, *args: Any) -> Any:
            result = resize(storage, *args)
            self.memory.resized(storage)
            return result

        torch.UntypedStorage.resize_ = traced_resize  # type: ignore[method-assign, assignment]

        def undo() -> None:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

        return undo

    def _register_hooks(self) -> list[Callable[[], None]]:
        def on_parameter(_module: Any, _name: str, parameter: Parameter | None) -> None:
            if parameter is not None:
                self.memory.add_parameter(parameter)

        def on_buffer(_module: Any, _name: str, buffer: torch.Tensor | None) -> None:
            if buffer is not None:
                self.memory.exclude_activation(buffer)

        handles = (
            nn_module.register_module_parameter_registration_hook(on_parameter),
            nn_module.register_module_buffer_registration_hook(on_buffer),
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        )
        return [h.remove for h in handles]

    # ---- operations

    def before_op(self, func: Any) -> None:  # noqa: ARG002
        self._t_s = _now_s()

    def after_op(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        duration_s = _now_s() - self._t_s
        op = self._ops.get(func) or self._describe(func)
        first = out if isinstance(out, torch.Tensor) else next(iter(tensors_in(out)), None)
        if first is not None and (first.is_meta or type(first).__name__ == "FakeTensor"):
            return  # shapes only
        self.memory.position = len(self._rows)
        read = self.memory.see_all(args, is_new=False)
        if kwargs:
            read += self.memory.see_all(kwargs.values(), is_new=False)
        written = self.memory.see_all((out,), is_new=True)
        if op.is_special and first is not None:
            self._follow_special(op, first)
        if not op.moves_data:
            return
        if op.reads_rows:
            read = written
        elif not op.reads_self:
            read -= args[0].nbytes
        flops = op.flops(args, first) if op.flops is not None else 0
        dtype = _dtype_name(first if first is not None else next(iter(tensors_in(args)), None))
        self._rows.append(
            ("compute", self._t_s, duration_s, op.name, self._phase, read, written, flops, dtype)
        )

    def _follow_special(self, op: _Op, result: torch.Tensor) -> None:
        if op.may_make_gradient and self._depth:
            node = torch._C._current_autograd_node()
            if type(getattr(node, "variable", None)) is Parameter:  # AccumulateGrad stores this result
                self.memory.tag(result, GRADIENTS)
        if op.may_resize:
            self.memory.resized(result.untyped_storage())

    def _describe(self, func: Any) -> _Op:
        name = func._schema.name
        short = name.removeprefix("aten::")
        is_empty = short.startswith(("empty", "new_empty")) or short == "prim::device"
        may_resize = "resize" in short or short == "set_"
        op = _Op(
            name=short,
            moves_data=not (func.is_view or is_empty or short in _NO_DATA),
            reads_self=short not in _NEVER_READ_SELF,
            reads_rows=short in _READ_ROWS_ONLY,
            may_make_gradient=short in _GRADIENT_MAKERS,
            may_resize=may_resize,
            is_special=may_resize or short in _GRADIENT_MAKERS,
            flops=flops_counter(name),
        )
        self._ops[func] = op
        return op

    # ---- communication

    def launch(self, call: CommCall, args: tuple[Any, ...]) -> None:
        self._in_flight[call.id] = self.memory.share_with_comm(args)
        self._rows.append(("launch", _now_s(), call, self._phase))

    def wait_begin(self, call: CommCall) -> None:  # noqa: ARG002
        self._wait_s = _now_s()

    def wait_end(self, call: CommCall) -> None:
        now_s = _now_s()
        time.sleep(_RELEASE_S)
        self._rows.append(("wait", self._wait_s, now_s - self._wait_s, call.id, self._phase))
        for record in self._in_flight.pop(call.id, ()):
            record.used_at = len(self._rows)
        self.memory.book_late_frees()

    def polled(self) -> None:
        self._rows.append(("mark", _now_s(), POLLED))

    # ---- memory

    def _alloc(self, record: TrackedStorage, existed: bool) -> None:
        self._rows.append(("alloc", _now_s(), record.id, record.bytes_, existed))

    def _free(self, record: TrackedStorage, is_late: bool) -> None:
        if not is_late or record.used_at < 0:
            if self._end_s:
                return  # after the trace
            self._rows.append(("free", _now_s(), record.id, record.bytes_))
            return
        kind, t_s, duration_s, *_ = self._rows[record.used_at - 1]
        ended_s = t_s + duration_s if kind in ("wait", "compute") else t_s
        self._late_frees.append((record.used_at, ("free", ended_s, record.id, record.bytes_)))

    # ---- phases and marks

    def _backward_begins(self) -> None:
        self.memory.keep_activations()
        self._rows.append(("backward", _now_s(), True, self._depth))
        self._depth += 1
        self._phase, self.memory.is_backward = "backward", True

    def _backward_ends(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._phase, self.memory.is_backward = "forward", False
        self.memory.sample_gradients()
        gc.collect(1)  # what this step made
        self._rows.append(("backward", _now_s(), False, self._depth))

    def _optimizer_begins(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.memory.add_parameter(parameter)
        self.memory.sample_gradients()
        self._phase = "optimizer"

    def _optimizer_ends(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    self.memory.tag(value, OPTIMIZER)
        self._phase = "backward" if self._depth else "forward"

    def mark(self, name: str) -> None:
        """Record a point of the program, with what is alive after a garbage collection."""
        time.sleep(_SETTLE_S)
        gc.collect()
        self.memory.sample_gradients()
        self.memory.book_late_frees()
        self._rows.append(("mark", _now_s(), name))

    # ---- result

    def to_plain(self) -> dict[str, Any]:
        """Return the rank's trace as JSON-able data; `RankTrace.from_plain` reads it."""
        self.memory.book_late_frees()
        live_bytes = 0
        events: list[Event] = []
        for row in self._rows_in_order():
            event, live_bytes = self._event(row, live_bytes)
            events.append(event)
        return RankTrace(self.rank, self._start_s, self._end_s, events).to_plain()

    def _rows_in_order(self) -> list[tuple[Any, ...]]:
        """All rows, with late frees put where their storages were last waited for or used."""
        late: dict[int, list[tuple[Any, ...]]] = {}
        for position, row in self._late_frees:
            late.setdefault(position, []).append(row)
        rows: list[tuple[Any, ...]] = []
        for position, row in enumerate([*self._rows]):
            rows += late.get(position, [])
            rows.append(row)
        return rows + late.get(len(self._rows), [])

    def _event(self, row: tuple[Any, ...], live_bytes: int) -> tuple[Event, int]:
        kind, t_s, *rest = row
        if kind in ("alloc", "free"):
            record = self.memory.storages[rest[0]]
            category = CATEGORIES[record.category]
            if kind == "alloc":
                live_bytes += rest[1]
                return Alloc(t_s, rest[0], rest[1], category, live_bytes, rest[2]), live_bytes
            live_bytes -= rest[1]
            is_shared = record.is_shared_with_comm
            return Free(t_s, rest[0], rest[1], category, live_bytes, is_shared), live_bytes
        if kind == "launch":
            call, phase = rest
            values = {f.name: getattr(call, f.name) for f in dataclasses.fields(CommCall)}
            return Launch(**values, t_s=t_s, phase=phase), live_bytes
        makers: dict[str, Any] = {
            "compute": Compute,
            "wait": Wait,
            "mark": Mark,
            "backward": Backward,
        }
        return makers[kind](t_s, *rest), live_bytes


def _dtype_name(tensor: torch.Tensor | None) -> str:
    if tensor is None:
        return ""
    dtype = tensor.dtype
    return _DTYPE_NAMES.get(dtype) or _DTYPE_NAMES.setdefault(dtype, str(dtype).removeprefix("torch."))


def _quiet_gc() -> Callable[[], None]:
    """Let garbage be collected only when asked for, and quickly: what exists now is not searched again."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()

    def undo() -> None:
        gc.unfreeze()
        if was_enabled:
            gc.enable()

    return undo
