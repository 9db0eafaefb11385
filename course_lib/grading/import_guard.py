"""Close, inside a rank, what an exercise asks the student to write.

The guard blocks the library's closed modules at import and drops those that are already imported. torch
cannot be imported twice, so its entry points are made to raise instead. This stops accidental and lazy use.
The guard also notes each attempt: an answer that swallows the error fails all the same. In the judge's
sandbox the closed files do not exist.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from course_lib.grading.exercise import GateFailed

# Oracles, cases and bounds: never where student code runs.
JUDGE_SIDE = tuple(f"course_lib.grading.{folder}" for folder in ("labs", "worlds", "parts"))
ALWAYS = (*JUDGE_SIDE, "course_lib.grading.scenarios")
# Ways between ranks that are no collectives; C++ opens their sockets.
SIDE_DOORS = (
    "torch.distributed.rpc:init_rpc",
    "torch._C._distributed_rpc:TensorPipeAgent",
    *(f"torch.distributed.elastic.utils.store:{name}" for name in ("synchronize", "get_all", "barrier")),
)

_PIPE = ("pipeline", "PipelineStage", "ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B")
_STYLES = (
    "parallelize_module",
    "ColwiseParallel",
    "RowwiseParallel",
    "SequenceParallel",
    "PrepareModuleInput",
)
TORCH: dict[str, tuple[str, ...]] = {
    "ddp": (
        "torch.nn.parallel.distributed:DistributedDataParallel",
        "torch.nn.parallel.data_parallel:DataParallel",
        "torch.distributed._composable.replicate:replicate",
        "torch._C._distributed_c10d:Reducer",
        "torch.distributed:Reducer",
    ),
    "fsdp": ("torch.distributed.fsdp:FullyShardedDataParallel", "torch.distributed.fsdp:fully_shard"),
    "zero": ("torch.distributed.optim:ZeroRedundancyOptimizer",),
    "checkpoint": (
        "torch.utils.checkpoint:checkpoint",
        "torch.utils.checkpoint:checkpoint_sequential",
        "torch.utils.checkpoint:CheckpointFunction.apply",
        "torch.utils.checkpoint:_checkpoint_without_reentrant_generator",
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:checkpoint_wrapper",
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper:apply_activation_checkpointing",
    ),
    "saved_tensors": (
        "torch.autograd.graph:saved_tensors_hooks",
        "torch.autograd.graph:save_on_cpu",
        "torch._C._autograd:_push_saved_tensors_default_hooks",
    ),
    "pipelining": tuple(f"torch.distributed.pipelining:{name}" for name in _PIPE),
    "dtensor": (
        "torch.distributed.tensor:distribute_tensor",
        "torch.distributed.tensor:distribute_module",
        "torch.distributed.tensor:DTensor.from_local",
        *(f"torch.distributed.tensor.parallel:{name}" for name in _STYLES),
        "torch.distributed.tensor.experimental:context_parallel",
    ),
    "mesh": ("torch.distributed.device_mesh:init_device_mesh", "torch.distributed.device_mesh:DeviceMesh"),
    "autograd_collectives": (
        *(
            f"torch.distributed.nn.functional:{name}"
            for name in (
                *("all_reduce", "all_gather", "_all_gather_base", "reduce_scatter", "all_to_all"),
                *("all_to_all_single", "broadcast", "reduce", "gather", "scatter"),
            )
        ),
        *(
            f"torch.distributed._functional_collectives:{name}_autograd"
            for name in (
                *("all_gather_tensor", "all_gather_single", "reduce_scatter_tensor"),
                *("reduce_scatter_single", "all_to_all_single"),
            )
        ),
    ),
    "join": ("torch.distributed.algorithms.join:Join",),
    "sampler": ("torch.utils.data.distributed:DistributedSampler",),
    "comm_hooks": (
        "torch.distributed.algorithms.ddp_comm_hooks.default_hooks:allreduce_hook",
        "torch.distributed.algorithms.ddp_comm_hooks.default_hooks:fp16_compress_hook",
        "torch.distributed.algorithms.ddp_comm_hooks.default_hooks:bf16_compress_hook",
    ),
}

# A collective: its functions in torch.distributed, the functional ones, methods of ProcessGroup, operators.
_COLLECTIVES: dict[str, tuple[str, str, str, str]] = {
    "all_reduce": (
        "all_reduce all_reduce_coalesced",
        "all_reduce all_reduce_inplace all_reduce_coalesced",
        "allreduce allreduce_coalesced",
        "allreduce_ allreduce_coalesced_",
    ),
    "broadcast": ("broadcast broadcast_object_list", "broadcast", "broadcast", "broadcast_"),
    "reduce": ("reduce", "", "reduce", "reduce_"),
    "all_gather": (
        "all_gather all_gather_into_tensor all_gather_single all_gather_object all_gather_coalesced",
        "all_gather_tensor all_gather_into_tensor_coalesced all_gather_tensor_autograd all_gather_inplace",
        "allgather _allgather_base allgather_coalesced allgather_into_tensor_coalesced all_gather_single",
        "allgather_ _allgather_base_ allgather_coalesced_ allgather_into_tensor_coalesced_",
    ),
    "reduce_scatter": (
        "reduce_scatter reduce_scatter_tensor reduce_scatter_single",
        "reduce_scatter_tensor reduce_scatter_tensor_coalesced reduce_scatter_tensor_autograd",
        "reduce_scatter _reduce_scatter_base reduce_scatter_tensor_coalesced reduce_scatter_single",
        "reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_",
    ),
    "all_to_all": (
        "all_to_all all_to_all_single",
        "all_to_all_single all_to_all_single_autograd all_to_all_inplace",
        "alltoall alltoall_base all_to_all_single",
        "alltoall_ alltoall_base_",
    ),
    "gather": ("gather gather_object", "", "gather", "gather_"),
    "scatter": ("scatter scatter_object_list", "", "scatter", "scatter_"),
    "send_recv": ("send recv isend irecv batch_isend_irecv", "", "send recv recv_anysource", "send recv_"),
    "barrier": ("barrier monitored_barrier", "", "barrier monitored_barrier", "barrier"),
}


def torch_entries(closed: str) -> tuple[str, ...]:
    """Resolve "torch:ddp" or "torch:collectives:all_reduce" to "module:attribute" entries.

    Raises: ValueError for a group that does not exist.
    """
    group, _, collective = closed.removeprefix("torch:").partition(":")
    if group in TORCH and not collective:
        return TORCH[group]
    if group != "collectives" or collective not in _COLLECTIVES:
        known = sorted([*TORCH, *(f"collectives:{name}" for name in _COLLECTIVES)])
        raise ValueError(
            f"closed entries of torch are {known}; got {closed!r}. Use one, or add it to import_guard.py."
        )
    functions, functional, methods, operators = (words.split() for words in _COLLECTIVES[collective])
    c10d, core = "torch.distributed.distributed_c10d", "torch._C._distributed_c10d"
    return (
        *(f"{c10d}:{name}" for name in functions),
        *(f"torch.distributed._functional_collectives:{name}" for name in functional),
        *(f"torch.distributed.nn.functional:{name}" for name in functions),
        *(f"{core}:{owner}.{name}" for owner in ("ProcessGroup", "Backend") for name in methods),
        *(f"torch:ops.c10d.{name}" for name in operators),
    )


_NAMES = frozenset(
    entry.rpartition(":")[2].rpartition(".")[2]
    for closed in (
        [f"torch:{group}" for group in TORCH] + [f"torch:collectives:{name}" for name in _COLLECTIVES]
    )
    for entry in (*SIDE_DOORS, *torch_entries(closed))
)
_looked: set[str] = set()  # modules that are in the two tables
_owners: dict[str, frozenset[str]] = {}  # a module of the course: the modules whose things it holds
_holders: dict[str, list[types.ModuleType]] = {}  # a name of an entry point: torch's modules that have it


def look_around() -> None:
    """Note what modules hold, each once.

    Looking counts references, and a rank copies each page on which it counts one. So the process from which
    ranks are forked looks, and a rank only at what it has imported itself.
    """
    new = list(itertools.takewhile(lambda name: name not in _looked, reversed(sys.modules)))
    if len(new) + len(_looked) != len(sys.modules):  # some have gone, or came again
        new = [name for name in sys.modules if name not in _looked]
    for name in new:
        module = sys.modules[name]
        is_ours = name.startswith("course_lib.")
        if (is_ours or name.startswith("torch")) and isinstance(module, types.ModuleType):
            if getattr(getattr(module, "__spec__", None), "_initializing", False):
                continue  # there may come more
            held = vars(module)
            if is_ours:
                owners = [getattr(value, "__module__", None) for value in list(held.values())]
                _owners[name] = frozenset(
                    o for o in owners if isinstance(o, str) and o.startswith("course_lib.")
                )
            elif not _NAMES.isdisjoint(held):
                for key in _NAMES.intersection(held):
                    _holders.setdefault(key, []).append(module)
        _looked.add(name)


class Guard(importlib.abc.MetaPathFinder):
    """Block closed modules, make closed entry points raise, note what was reached."""

    def __init__(self, exercise_id: str, closed: Sequence[str]) -> None:
        """Sort the entries of `Exercise.closed`."""
        self.exercise_id = exercise_id
        self.reached: list[str] = []
        self.modules = (*ALWAYS, *(_full_name(c) for c in closed if not c.startswith("torch:")))
        asked = (entry for c in closed if c.startswith("torch:") for entry in torch_entries(c))
        self.entries = [*SIDE_DOORS, *asked]

    def install(self) -> None:
        """Close everything. Call it after the program was imported and before the answer is loaded."""
        sys.meta_path.insert(0, self)
        look_around()
        self._forget_modules()
        self.patch(entry for entry in self.entries if entry.partition(":")[0] in sys.modules)

    def refuse(self, name: str) -> NoReturn:
        """Note that a closed module or entry point was reached, and raise."""
        if any(name == door.replace(":", ".") for door in SIDE_DOORS):
            self.refuse_side_door(name)
        self._raise(closed_message(self.exercise_id, name))

    def refuse_side_door(self, what: str) -> NoReturn:
        """Note that the answer used another way between ranks than torch.distributed, and raise."""
        self._raise(
            f"exercise {self.exercise_id}: ranks may exchange data through torch.distributed only; {what} is "
            "closed here. Send it with a collective, or send and recv; for a message to yourself, print it."
        )

    def _raise(self, message: str) -> NoReturn:
        self.reached.append(message)
        raise GateFailed("closed", message)

    def is_closed(self, module: str) -> bool:
        """True for a closed module and all modules below it."""
        return any(module == m or module.startswith(m + ".") for m in self.modules)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Refuse closed modules; let torch's be imported, then close their entries."""
        del target
        if self.is_closed(fullname):
            self.refuse(fullname)
        mine = [e for e in self.entries if e.partition(":")[0] == fullname]
        spec = importlib.machinery.PathFinder.find_spec(fullname, path) if mine else None
        if spec is not None and spec.loader is not None:
            spec.loader = _PatchAfter(spec.loader, lambda: self.patch(mine))
        return spec

    def _forget_modules(self) -> None:
        for name, owners in _owners.items():
            is_ours = name.startswith("course_lib.grading")
            if self.is_closed(name) or (not is_ours and any(map(self.is_closed, owners))):
                sys.modules.pop(name, None)
                _looked.discard(name)
                parent, _, last = name.rpartition(".")
                if hasattr(sys.modules.get(parent), last):
                    delattr(sys.modules[parent], last)

    def patch(self, entries: Iterable[str]) -> None:
        """Make entry points raise, wherever torch holds a reference to them."""
        look_around()
        for entry in entries:
            module_name, _, path = entry.partition(":")
            owner: Any = sys.modules[module_name]
            *outer, last = path.split(".")
            for name in outer:
                owner = getattr(owner, name, None)
            found = getattr(owner, last, None)
            name = f"{module_name}.{path}".replace("torch.distributed.distributed_c10d", "torch.distributed")
            if isinstance(found, type):
                self._close_class(found, name)
            elif found is not None and not getattr(found, "__closed_here__", False):
                stand_in = self._raising(name)
                setattr(owner, last, stand_in)
                for module in _holders.get(last, ()):
                    if vars(module).get(last) is found:
                        setattr(module, last, stand_in)

    def _raising(self, name: str) -> Callable[..., Any]:
        def closed(*_args: Any, **_kwargs: Any) -> NoReturn:
            self.refuse(name)

        closed.__closed_here__ = True  # type: ignore[attr-defined]
        return closed

    def _close_class(self, cls: type, name: str) -> None:
        def subclassed(sub: type[Any], /, **_: Any) -> None:
            if not sub.__module__.startswith("torch."):
                self.refuse(name)

        cls.__init__ = self._raising(name)  # type: ignore[misc]
        cls.__init_subclass__ = classmethod(subclassed)  # type: ignore[assignment]


class _PatchAfter(importlib.abc.Loader):
    """Run the real loader, then close what the module brought."""

    def __init__(self, loader: importlib.abc.Loader, after: Callable[[], None]) -> None:
        self.loader = loader
        self.after = after

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self.loader.exec_module(module)
        self.after()


def closed_message(exercise_id: str, name: str) -> str:
    """The one wording for reaching what is closed."""
    return f"exercise {exercise_id} asks you to write this; {name} is closed here. Use what stays open."


def closed_ops(closed: Sequence[str]) -> frozenset[str]:
    """Return the names of closed collectives in a trace, which shows calls that got past the entry points."""
    names = {c.rpartition(":")[2] for c in closed if c.startswith("torch:collectives:")}
    tables = {
        "all_gather": ("all_gather", "all_gather_single"),
        "reduce_scatter": ("reduce_scatter", "reduce_scatter_single"),
        "all_to_all": ("all_to_all", "all_to_all_single"),
        "send_recv": ("send", "recv"),
    }
    return frozenset(op for name in names for op in tables.get(name, (name,)))


def _full_name(module: str) -> str:
    return module if module.startswith("course_lib") else f"course_lib.{module}"
