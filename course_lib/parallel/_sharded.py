"""What techniques that shard the model share: gradients and parameters of which each rank holds a part.

torch's own functions look at `.grad` and at the optimizer's parameters. They see a part, and would take it
for the whole: `ShardedGradient` gives them the norm and the check for inf of the whole, and a `StepCheck`
lets a wrapper act before an optimizer steps its parameters. torch's FSDP2 uses DTensors for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

NOT_ELEMENTWISE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")


# ---- what torch has no public name for


def in_backward() -> bool:
    """Whether autograd runs: a forward is then a checkpoint's recomputation."""
    return torch._C._current_graph_task_id() != -1


def at_end_of_backward(callback: Callable[[], None]) -> None:
    """Call it once the backward that runs now is over; torch's own DDP and FSDP2 do it by this name, too."""
    torch.autograd.Variable._execution_engine.queue_callback(callback)


# ---- wrappers


class Note:
    """What a technique knows of a parameter, as its attribute. Neither copied nor pickled with it."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return type(None), ()


def note_of(param: Tensor, name: str) -> Any:
    """Return what is noted under a name, or None."""
    return getattr(getattr(param, name, None), "value", None)


def owner_of(param: Tensor) -> object:
    """Return the wrapper that synchronises this parameter's gradient, or None."""
    return note_of(param, "_owner")


def mark_cut(param: nn.Parameter, group: dist.ProcessGroup | None) -> nn.Parameter:
    """Note that each rank of a group has another part of this parameter."""
    param._cut_over = Note(group)  # type: ignore[attr-defined]
    return param


def check_not_cut(params: Iterable[Tensor], group: dist.ProcessGroup | None) -> None:
    """Raise ValueError if ranks of the group have different parts: one rank's would overwrite the others'."""
    params = list(params)
    if any(hasattr(param, "placements") for param in params):
        raise ValueError(
            "parameters must be plain tensors; got DTensors, which torch's fully_shard or parallelize_module "
            "synchronises. Wrap the plain module, once."
        )
    cuts = {id(cut): cut for cut in (note_of(param, "_cut_over") for param in params) if cut is not None}
    own = set(dist.get_process_group_ranks(group))
    for cut in cuts.values():
        shared = own & set(dist.get_process_group_ranks(cut))
        if len(shared) > 1:
            raise ValueError(
                "data-parallel ranks must hold equal parameters; got a group in which ranks "
                f"{sorted(shared)} have parts of one tensor or other experts. Pass the group of the ranks "
                "with equal parts, such as mesh.group('dp_replicate')."
            )


class Wrapper(nn.Module):
    """What DDP and FSDP share: a parameter has one owner, which is neither copied nor pickled.

    advice, copying: what to do instead, for the two refusals.
    """

    advice: str
    copying: str

    def claim(self, module: nn.Module, *groups: dist.ProcessGroup | None) -> None:
        """Make the trained parameters of a module this wrapper's.

        Raises: ValueError if one is another wrapper's, or cut over one of the groups.
        """
        params = list(module.parameters())
        for group in groups:
            check_not_cut(params, group)
        inner = [m for m in module.modules() if isinstance(m, nn.parallel.DistributedDataParallel)]
        for owner in (*filter(None, map(owner_of, params)), *inner):
            self._refuse_nested(type(self).__name__, type(owner).__name__)
        for param in params:
            if param.requires_grad:
                self.own(param)

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> NoReturn:
        """Asked for by torch's DDP, before it averages again, or gives every rank the part of rank 0."""
        self._refuse_nested("DistributedDataParallel", type(self).__name__)

    def _refuse_nested(self, outer: str, inner: str) -> NoReturn:
        raise ValueError(
            f"a module must be in one wrapper; got {outer} around what is in {inner} already. {self.advice}."
        )

    def own(self, param: Tensor) -> None:
        """Mark a parameter as this wrapper's."""
        param._owner = Note(self)  # type: ignore[attr-defined]

    def check_sent(self) -> None:
        """Raise ValueError if gradients are this rank's own."""

    def __deepcopy__(self, _memo: Any) -> NoReturn:
        self._refuse_copy("deepcopy")

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        self._refuse_copy("pickle, as torch.save does,")

    def _refuse_copy(self, what: str) -> NoReturn:
        raise ValueError(
            f"{type(self).__name__} must stay with its ranks: its hooks and groups are not copied; got a "
            f"{what} of one. {self.copying}."
        )


# ---- tensors that stand for others


class Guarded(Tensor):
    """A tensor that must not be taken for what stands where it is: functions raise, in one sentence.

    says: the sentence, with {} for the function; allows: names of functions that are right on it.
    """

    says: str
    allows: frozenset[str]
    marks_zero = is_zeroed = False  # one without elements only notes that it was zeroed

    @classmethod
    def __torch_function__(
        cls, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse all but attributes and what is allowed."""
        name = getattr(func, "__name__", str(func))
        if hasattr(func, "overloadpacket"):  # autograd's own, seen by a trace
            return _run_plain(func, args, kwargs)
        if name in ("__get__", "__set__"):  # an attribute's
            name = ("=" if name == "__set__" else "") + func.__self__.__name__
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, cls) and name not in _ATTRIBUTES | tensor.allows:
                raise ValueError(tensor.says.format(name.removeprefix("=")))
        if name == "zero_" and args[0].marks_zero:
            args[0].is_zeroed = True
            return args[0]
        return _run_plain(func, args, kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Say why it shows no elements."""
        return f"Guarded({self.says.format('print')})"


def _run_plain(func: Any, args: Any, kwargs: dict[str, Any] | None) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


_ATTRIBUTES = {  # they look at no element
    *("shape", "dtype", "device", "layout", "ndim", "size", "dim", "numel", "stride", "itemsize", "nbytes"),
    *("is_leaf", "requires_grad", "requires_grad_", "detach_", "grad_fn", "is_sparse", "is_cuda", "is_meta"),
    *("is_contiguous", "is_complex", "is_floating_point", "is_quantized", "is_nested", "element_size"),
    *("untyped_storage", "storage_offset", "__hash__", "__len__", "_version", "_backward_hooks"),
}


def guarded(shown: Tensor, says: str, allows: Iterable[str] = (), *, marks_zero: bool = False) -> Tensor:
    """Return `shown` as a tensor that refuses functions but `allows`; fake tensors hold nothing to guard."""
    if type(shown) is not Tensor:
        return shown
    guard = shown.as_subclass(Guarded)
    guard.says, guard.allows, guard.marks_zero = says, frozenset(allows), marks_zero
    return guard


class ShardedGradient(Tensor):
    """A rank's part of a mean gradient: what works element by element is right on it, and optimizers do.

    What makes fewer numbers of it would be this rank's alone, and is refused: norms, clipping by them,
    GradScaler's check, and optimizers that look at whole tensors.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse what `_OF_THE_WHOLE` names; what comes of the rest, but a clone, is such a part, too."""
        name = getattr(func, "__name__", str(func))
        if name in _OF_THE_WHOLE:
            raise ValueError(
                f"a sharded gradient must be asked as a whole; got {name} of this rank's part. Clip with "
                "clip_grad_norm_ of the FSDP module or ZeroOptimizer, which returns the norm; bfloat16 needs "
                "no GradScaler; take an optimizer that updates each element on its own."
            )
        out = _run_plain(func, args, kwargs)
        changed_in_place = name.endswith("_") and not name.startswith("__")
        if type(out) is not Tensor or changed_in_place or name == "clone" or hasattr(func, "overloadpacket"):
            return out
        return out.as_subclass(cls)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle this rank's elements, as a plain tensor."""
        return own_values(self).__reduce_ex__(protocol)


_OF_THE_WHOLE = {
    *("norm", "vector_norm", "linalg_vector_norm", "matrix_norm", "linalg_matrix_norm", "_foreach_norm"),
    *("sum", "nansum", "mean", "nanmean", "prod", "std", "var", "median", "count_nonzero", "logsumexp"),
    *("max", "min", "amax", "amin", "aminmax", "argmax", "argmin", "_foreach_max", "any", "all", "equal"),
    *("allclose", "dot", "vdot", "matmul", "mm", "_amp_foreach_non_finite_check_and_unscale_"),
}


def sharded_gradient(values: Tensor) -> Tensor:
    """Return `values`, this rank's part of a mean gradient, for `.grad`; fake tensors as they are."""
    return values.as_subclass(ShardedGradient) if type(values) is Tensor else values


def own_values(grad: Tensor) -> Tensor:
    """Return what a gradient holds on this rank, as a plain tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        plain: Tensor = grad.as_subclass(Tensor) if isinstance(grad, ShardedGradient | Guarded) else grad
        return plain


def check_gradient(grad: Tensor, place: Tensor) -> None:
    """Raise ValueError for a gradient that cannot be added up where it was planned."""
    if grad.is_sparse:
        raise ValueError(
            f"gradients must be dense: they travel in flat vectors; got a sparse one of {list(grad.shape)}. "
            "Build the embedding with sparse=False."
        )
    if (grad.dtype, grad.device) != (place.dtype, place.device):
        raise ValueError(
            "parameters must keep their dtype and device; got a gradient of "
            f"{grad.dtype} on {grad.device}, planned as {place.dtype} on {place.device}. "
            "Convert or move the model before wrapping it or building its ZeroOptimizer."
        )


class PartsAlone(TorchFunctionMode):
    """Refuse what makes fewer numbers of a tensor: an optimizer inside would get those of a part."""

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse what `_OF_THE_WHOLE` names, where it is not element by element."""
        out = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _OF_THE_WHOLE:
            sizes = [leaf.numel() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            made = sum(leaf.numel() if isinstance(leaf, Tensor) else 1 for leaf in tree_leaves(out))
            if made < max(sizes, default=0):
                raise ValueError(
                    "the optimizer must update each element on its own, as SGD and Adam do; got "
                    f"{func.__name__} of this rank's part in its step, as LAMB and LARS do. Use one that "
                    "does, or torch's ZeroRedundancyOptimizer."
                )
        return out


def check_elementwise(optimizer: object) -> None:
    """Raise ValueError for an optimizer, or a class of them, that looks at whole tensors."""
    name = getattr(optimizer, "__name__", type(optimizer).__name__)
    if name in NOT_ELEMENTWISE:
        raise ValueError(
            f"the optimizer must update each element on its own, as SGD and Adam do; got {name}, which looks "
            "at whole tensors. Use one that does, or torch's ZeroRedundancyOptimizer."
        )


# ---- sums over shards


@torch.no_grad()
def clip_sharded_norm_(
    params: Sequence[Parameter],
    max_norm: float,
    group: dist.ProcessGroup | None = None,
    norm_type: float = 2.0,
) -> Tensor:
    """Scale the gradients of sharded parameters so that their norm over all ranks is at most max_norm.

    Returns the norm before, a float64 scalar. Communication: one all_reduce of one float64. A NaN anywhere
    makes all gradients NaN, as torch's clip_grad_norm_ does.
    """
    parts = [own_values(param.grad) for param in params if param.grad is not None and param.numel()]
    # Each rank's norm, then the ranks': sqrt(sum of squares), or the largest
    device = params[0].device if params else None
    norms = [torch.linalg.vector_norm(part, norm_type, dtype=torch.float64) for part in parts]
    whole = torch.stack([torch.zeros((), dtype=torch.float64, device=device), *norms])
    is_max = norm_type == float("inf")
    value = whole.max() if is_max else whole.pow(norm_type).sum()
    if dist.get_world_size(group) > 1:
        dist.all_reduce(value, op=dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM, group=group)
    norm = value if is_max else value.pow(1 / norm_type)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for part in parts:
        part.mul_(scale.to(part.dtype))
    return norm


def cast_floating(tree: Any, dtype: torch.dtype) -> Any:
    """Return floating tensors as dtype, at any depth of lists, dicts and dataclasses; all else as it is."""

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.to(dtype) if leaf.is_floating_point() else leaf
        if is_dataclass(leaf) and not isinstance(leaf, type):
            values = {field.name: getattr(leaf, field.name) for field in fields(leaf) if field.init}
            return replace(leaf, **tree_map(cast, values))
        return leaf

    return tree_map(cast, tree)


def pack_buckets(params: list[Parameter], bucket_bytes: int) -> list[list[Parameter]]:
    """Group parameters in reverse order, that in which backward finishes them, roughly.

    The rule: a bucket closes when the next parameter would make it exceed `bucket_bytes`, or has another
    dtype or device. A parameter larger than `bucket_bytes` has a bucket of its own; the last bucket holds
    what is left.
    Raises: ValueError if bucket_bytes is not positive.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be positive; got {bucket_bytes}. torch's DDP uses 25 * 2**20.")
    buckets: list[list[Parameter]] = []
    free_bytes = 0
    for param in reversed(params):
        same_kind = buckets and (buckets[-1][0].dtype, buckets[-1][0].device) == (param.dtype, param.device)
        if not same_kind or param.nbytes > free_bytes:
            buckets.append([])
            free_bytes = bucket_bytes
        buckets[-1].append(param)
        free_bytes -= param.nbytes
    return buckets


def column(part: Tensor, ndim: int, *, requires_grad: bool) -> Parameter:
    """Return a rank's elements of a tensor as a parameter with the tensor's number of dims: [k, 1, 1].

    So that `p.ndim` tells matrices from vectors, as optimizers' groups do. A scalar that is elsewhere is [0].
    """
    shape = (part.numel(), *[1] * (ndim - 1)) if ndim or not part.numel() else ()
    return Parameter(part.view(shape), requires_grad=requires_grad)
