"""What techniques that shard the model share: gradients and parameters of which each rank holds a part.

torch's own functions look at `.grad` and at the optimizer's parameters. They see a part, and would take it
for the whole: `ShardedGradient` gives them the norm and the check for inf of the whole, and a `StepCheck`
lets a wrapper speak before an optimizer steps its parameters. torch's FSDP2 uses DTensors for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
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


class _Claim:
    """Whose a parameter is. Neither copied nor pickled with it."""

    def __init__(self, owner: object) -> None:
        self.owner = owner

    def __reduce__(self) -> Any:
        return type(None), ()


def owner_of(param: Tensor) -> object:
    """Return the wrapper that synchronises this parameter's gradient, or None."""
    return getattr(getattr(param, "_claim", None), "owner", None)


class Wrapper(nn.Module):
    """What DDP and FSDP share: a parameter has one owner, which is neither copied nor pickled.

    advice, copying: what to do instead, for the two refusals.
    """

    advice: str
    copying: str

    def claim(self, params: Iterable[Tensor]) -> None:
        """Make the trained ones of these parameters this wrapper's; raise ValueError if one is another's."""
        params = list(params)
        for owner in filter(None, map(owner_of, params)):
            raise ValueError(
                f"a module must be in one wrapper; got a {type(self).__name__} around what is in "
                f"{type(owner).__name__} already. {self.advice}."
            )
        for param in params:
            if param.requires_grad:
                self.own(param)

    def own(self, param: Tensor) -> None:
        """Mark a parameter as this wrapper's."""
        param._claim = _Claim(self)  # type: ignore[attr-defined]

    def check_sent(self) -> None:
        """Raise ValueError if gradients are this rank's own."""

    def __deepcopy__(self, _memo: Any) -> NoReturn:
        self._refuse_copy("deepcopy")

    def __reduce_ex__(self, _protocol: Any) -> NoReturn:
        self._refuse_copy("pickle, as torch.save does,")

    def _refuse_copy(self, what: str) -> NoReturn:
        name = type(self).__name__
        raise ValueError(
            f"a {name} must stay with its ranks: its hooks and groups are not copied; got a {what} of one. "
            f"{self.copying}."
        )


# ---- tensors that stand for others


class Guarded(Tensor):
    """A tensor that must not be taken for what stands where it is: functions raise, in one sentence.

    says: the sentence, with {} for the function; allows: names of functions that are right on it.
    """

    says: str
    allows: frozenset[str]

    @classmethod
    def __torch_function__(
        cls, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse all but attributes and what is allowed."""
        name = getattr(func, "__name__", str(func))
        if name in ("__get__", "__set__"):  # an attribute's
            name = ("=" if name == "__set__" else "") + func.__self__.__name__
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, cls) and name not in _ATTRIBUTES | tensor.allows:
                raise ValueError(tensor.says.format(name.removeprefix("=")))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        """Say why it shows no elements."""
        return f"Guarded({self.says.format('print')})"


_ATTRIBUTES = {  # they look at no element
    *("shape", "dtype", "device", "layout", "ndim", "size", "dim", "numel", "stride", "itemsize", "nbytes"),
    *("is_leaf", "requires_grad", "requires_grad_", "detach_", "grad_fn", "is_sparse", "is_cuda", "is_meta"),
    *("is_contiguous", "is_complex", "is_floating_point", "is_quantized", "is_nested", "element_size"),
    *("untyped_storage", "storage_offset", "__hash__", "__len__", "_version", "_backward_hooks"),
}


def guarded(shown: Tensor, says: str, allows: Iterable[str] = ()) -> Tensor:
    """Return `shown` as a tensor that refuses functions but `allows`; fake tensors hold nothing to guard."""
    if type(shown) is not Tensor:
        return shown
    stand_in = shown.as_subclass(Guarded)
    stand_in.says, stand_in.allows = says, frozenset(allows)
    return stand_in


# ---- before an optimizer steps


class StepCheck:
    """What a wrapper asks before an optimizer steps a parameter. Not copied or pickled with the parameter."""

    def __init__(self, check: Callable[[Optimizer], None], owner: object = None) -> None:
        self.check, self.owner = check, owner

    def __reduce__(self) -> Any:
        return type(None), ()


def check_before_step(param: Tensor, check: Callable[[Optimizer], None], owner: object = None) -> None:
    """Call `check(optimizer)` before every step of an optimizer that holds this parameter."""
    param._step_check = StepCheck(check, owner)  # type: ignore[attr-defined]


def wrapper_of(param: Tensor) -> object:
    """Return the wrapper around this parameter, or None."""
    return owner_of(param) or getattr(getattr(param, "_step_check", None), "owner", None)


def run_step_checks(params: Iterable[Tensor], optimizer: Optimizer) -> None:
    """Ask every wrapper of these parameters, each once."""
    params = list(params)
    checks = [getattr(param, "_step_check", None) for param in params]
    for check in dict.fromkeys(one.check for one in checks if one is not None):
        check(optimizer)
    for owner in {id(owner): owner for owner in map(owner_of, params)}.values():
        if isinstance(owner, Wrapper):
            owner.check_sent()


def _before_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
    run_step_checks((p for group in optimizer.param_groups for p in group["params"]), optimizer)


register_optimizer_step_pre_hook(_before_step)


def check_elementwise(optimizer: object) -> None:
    """Raise ValueError for an optimizer, or a class of them, that looks at whole tensors."""
    name = getattr(optimizer, "__name__", type(optimizer).__name__)
    if name in NOT_ELEMENTWISE:
        raise ValueError(
            f"the optimizer must update each element on its own, as SGD and Adam do; got {name}, which looks "
            "at whole tensors. Use one that does, or torch's ZeroRedundancyOptimizer."
        )


# ---- gradients


class ShardedGradient(Tensor):
    """A gradient of which this rank holds a part: what torch asks of the whole, it is asked over all ranks.

    Norms are those of the whole gradient, so that `torch.nn.utils.clip_grad_norm_` clips as in one process;
    GradScaler's check for inf and NaN is over all ranks, so that all skip a step together. Communication: a
    norm or a check, one all_reduce of one number a gradient or list. All other functions see this rank's
    part.
    """

    group: dist.ProcessGroup | None
    part: Callable[[], Tensor] | None  # None: this tensor's own elements
    is_readable: bool

    @classmethod
    def __torch_function__(
        cls, func: Any, _types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run `func`, by `_OF_THE_WHOLE` where it asks about the whole gradient."""
        with torch._C.DisableTorchFunctionSubclass():
            if func in _OF_THE_WHOLE:
                return _OF_THE_WHOLE[func](func, *args, **(kwargs or {}))
            if func not in _ANYTIME and getattr(func, "__name__", "") != "__get__":
                _check_readable(func, args)
            return func(*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle this rank's elements, as a plain tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.as_subclass(Tensor).__reduce_ex__(protocol)


def sharded_gradient(
    values: Tensor,
    group: dist.ProcessGroup | None,
    part: Callable[[], Tensor] | None = None,
    *,
    is_readable: bool = True,
) -> Tensor:
    """Return `values`, this rank's part of a gradient over `group`, for `.grad`.

    part: gives the elements that norms and changes are about, where they are elsewhere. is_readable: False
    where `values` only has the right shape.
    """
    if type(values) is not Tensor:  # fake tensors: there is nothing to compute
        return values
    grad = values.as_subclass(ShardedGradient)
    grad.group, grad.part, grad.is_readable = group, part, is_readable
    return grad


def local_part(grad: Any) -> Any:
    """Return the elements that this rank holds, as a plain tensor; anything else as it is."""
    if not isinstance(grad, ShardedGradient):
        return grad
    with torch._C.DisableTorchFunctionSubclass():
        part: Tensor = (grad if grad.part is None else grad.part()).as_subclass(Tensor)
        return part


def own_values(grad: Tensor) -> Tensor:
    """Return what a readable gradient shows, as a plain tensor."""
    plain: Tensor = grad.as_subclass(Tensor) if isinstance(grad, ShardedGradient) else grad
    return plain


def _check_readable(func: Any, args: Any) -> None:
    for grad in tree_leaves(args):
        if isinstance(grad, ShardedGradient) and not grad.is_readable:
            raise ValueError(
                "a gradient must be read where its elements are; got a call of "
                f"{getattr(func, '__name__', func)} for one that lies in shards. Read the shards' gradients, "
                "those of optimizer.param_groups, after sync_gradients()."
            )


def _norm(_func: Any, grad: ShardedGradient, *args: Any, **kwargs: Any) -> Tensor:
    return _norms(_func, [grad], *args, **kwargs)[0]


@torch.no_grad()
def _norms(
    _func: Any,
    grads: Sequence[Tensor],
    ord: Any = 2.0,
    dim: Any = None,
    keepdim: bool = False,
    dtype: Any = None,
    p: Any = None,
) -> list[Tensor]:
    if dim is not None or keepdim:
        raise ValueError(
            f"the norm of a sharded gradient must be of all its elements; got dim={dim}. Leave it out."
        )
    power = {None: 2.0, "fro": 2.0}.get(p if p is not None else ord, p if p is not None else ord)
    first = next(grad for grad in grads if isinstance(grad, ShardedGradient))
    parts = [local_part(grad) for grad in grads]
    squares: list[Tensor] = [_power_sum(part, power) for part in parts]
    whole = _reduce(torch.stack(squares), power == float("inf"), first.group)
    norms = whole if power == float("inf") else whole.pow(1 / power)
    return [norm.to(dtype or part.dtype) for norm, part in zip(norms, parts, strict=True)]


def _power_sum(part: Tensor, power: float) -> Tensor:
    """Return the sum of |x| ** power, for inf the largest |x|, in float64."""
    if not part.numel():
        return part.new_zeros((), dtype=torch.float64)
    if power == float("inf"):
        return part.abs().max().double()
    norm: Tensor = torch.linalg.vector_norm(part, power, dtype=torch.float64)
    return norm.pow(power)


def _reduce(value: Tensor, is_max: bool, group: dist.ProcessGroup | None) -> Tensor:
    if dist.get_world_size(group) > 1:
        op = dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM
        dist.all_reduce(value, op=op, group=group)
    return value


def _change(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Change the elements where they are."""
    local_args, local_kwargs = tree_map(local_part, (args, kwargs))
    func(*local_args, **local_kwargs)
    return args[0]


def _zero(_func: Any, grads: Any) -> Any:
    """Zero what is shown, where it is a gradient, and what it shows a part of."""
    for grad in [grads] if isinstance(grads, Tensor) else grads:
        shown = own_values(grad)
        (shown if getattr(grad, "is_readable", True) else local_part(grad)).zero_()
    return grads


def _unscale(func: Any, grads: Sequence[Tensor], found_inf: Tensor, inv_scale: Tensor) -> None:
    """Unscale this rank's parts; an inf on any rank is one on all."""
    func([local_part(grad) for grad in grads], found_inf, inv_scale)
    first = next(grad for grad in grads if isinstance(grad, ShardedGradient))
    _reduce(found_inf, True, first.group)


_OF_THE_WHOLE: dict[Any, Callable[..., Any]] = {
    torch.linalg.vector_norm: _norm,
    torch.norm: _norm,
    Tensor.norm: _norm,
    torch._foreach_norm: _norms,
    torch._amp_foreach_non_finite_check_and_unscale_: _unscale,
    **dict.fromkeys((Tensor.zero_, torch._foreach_zero_), _zero),
    **dict.fromkeys(
        (
            Tensor.mul_,
            Tensor.div_,
            Tensor.clamp_,
            torch._foreach_mul_,
            torch._foreach_div_,
            torch._foreach_clamp_min_,
            torch._foreach_clamp_max_,
        ),
        _change,
    ),
}
_ANYTIME = (  # they look at no element
    Tensor.requires_grad_,
    Tensor.detach_,
    Tensor.size,
    Tensor.dim,
    Tensor.numel,
    Tensor.stride,
    Tensor.is_complex,
    Tensor.is_floating_point,
    Tensor.untyped_storage,
    Tensor.storage_offset,
    Tensor.__hash__,
)


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


@torch.no_grad()
def clip_sharded_norm_(
    params: Sequence[Parameter], max_norm: float, group: dist.ProcessGroup | None = None
) -> Tensor:
    """Scale the gradients of sharded parameters so that their 2-norm over all ranks is at most max_norm.

    Returns the norm before. Communication: one all_reduce of one float64. A NaN anywhere makes all gradients
    NaN, as torch's clip_grad_norm_ does.
    """
    parts = [local_part(param.grad) for param in params if param.grad is not None]
    squares = torch.zeros((), dtype=torch.float64, device=params[0].device if params else None)
    for part in parts:
        squares += part.double().square().sum()
    norm = _reduce(squares, False, group).sqrt()
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for part in parts:
        part.mul_(scale.to(part.dtype))
    return norm


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


def parts_of(numels: Sequence[int], start: int, stop: int) -> list[slice]:
    """Return, for each of several tensors laid out one after another, what [start, stop) holds of it.

    Slices of the range; empty ones for tensors outside.
    """
    parts, offset = [], 0
    for numel in numels:
        first, last = max(start, offset), min(stop, offset + numel)
        parts.append(slice(first - start, last - start) if first < last else slice(0, 0))
        offset += numel
    return parts


def column(part: Tensor, ndim: int, *, requires_grad: bool) -> Parameter:
    """Return a rank's elements of a tensor as a parameter with the tensor's number of dims: [k, 1, 1].

    So that `p.ndim` tells matrices from vectors, as optimizers' groups do. A scalar that is elsewhere is [0].
    """
    shape = (part.numel(), *[1] * (ndim - 1)) if ndim or not part.numel() else ()
    return Parameter(part.view(shape), requires_grad=requires_grad)
