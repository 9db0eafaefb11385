"""Save and load the state of a `ZeroOptimizer`, numbered as torch.optim numbers parameters.

Saved whole, it is the plain optimizer's; saved in shards, each rank writes what it holds. Either is read by
any number of ranks, with any stage and bucket size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from course_lib.checkpoint.files import CheckpointError, load_shards, save_shard
from course_lib.checkpoint.pieces import check_same_tensors
from course_lib.checkpoint.state import (
    check_optimizer_class,
    check_saved_state,
    is_number,
    join_state,
    split_state,
)
from course_lib.comm.flat import FlatLayout
from course_lib.parallel.zero import ZeroOptimizer

Saved = dict[str, Any]  # {"state": {index: entries}, "param_groups": [...]}
_AXES = ["dp"]  # of a ZeroOptimizer's save


def save(folder: Path | str, model: nn.Module, optimizer: ZeroOptimizer, *, step: int = 0) -> Path:
    """Write this rank's share of the optimizer's state, on rank 0 the model too; return the file's path.

    All ranks of the optimizer's group call it, with a folder of the group's own. The checkpoint is whole when
    all have returned: put a barrier before you rely on it.
    """
    rank, mesh = optimizer.group_rank, dict.fromkeys(_AXES, optimizer.world_size)
    state = {
        "model": dict(model.state_dict()) if rank == 0 else {},
        "optimizer": sharded_state_dict(optimizer),
        "optimizer_class": type(optimizer.inner).__name__,
    }
    return save_shard(folder, state, rank=rank, mesh=mesh, axes=_AXES, step=step)


def load_(folder: Path | str, model: nn.Module, optimizer: ZeroOptimizer) -> int:
    """Read what any number of ranks saved; return the step at which they did.

    All is checked before the first value is written, the optimizer's too.
    Raises: ValueError that names what is damaged, missing, or of another model or optimizer.
    """
    shards = load_shards(folder)
    if shards[0].header.axes != _AXES:
        raise CheckpointError(
            f"the files must be a ZeroOptimizer's, saved along {_AXES}; got a save along "
            f"{shards[0].header.axes}. Nothing was loaded: load it with checkpoint.fsdp."
        )
    states = [shard.state["optimizer"] for shard in shards]
    weights = shards[0].state["model"]
    check_optimizer_class(optimizer.inner, shards[0].state["optimizer_class"])
    want = {name: value.shape for name, value in model.state_dict().items()}
    check_same_tensors(want, {name: value.shape for name, value in weights.items()}, "the saved model")
    _check_saved(optimizer, states)
    model.load_state_dict(weights)
    load_state_dict_(optimizer, states)
    return shards[0].header.step


def sharded_state_dict(optimizer: ZeroOptimizer) -> Saved:
    """Return this rank's share: {"state": {index: {key: Piece or number}}, "param_groups": [...]}."""
    state: dict[int, dict[str, Any]] = {}
    for index, part, key, layout, start in _parts(optimizer):
        entries = dict(sorted(optimizer.inner.state.get(key, {}).items()))
        if _owns_masters(optimizer):
            entries["master"] = part.detach()
        flat = {key: value if is_number(key, value) else value.reshape(-1) for key, value in entries.items()}
        found = split_state(layout, start, flat)
        state.update({index: found[0]} if found else {})
    return {"state": state, "param_groups": _numbered_groups(optimizer)}


def full_state_dict(optimizer: ZeroOptimizer) -> Saved:
    """Return, on every rank, what the optimizer's own state_dict would be in one process.

    Communication: an all_gather of all ranks' shares, as objects.
    """
    shares: list[Saved] = optimizer.gather_objects(sharded_state_dict(optimizer))
    state: dict[int, dict[str, Any]] = {}
    for index, param in enumerate(optimizer.params):
        found = [share["state"][index] for share in shares if index in share["state"]]
        if found:
            layout = FlatLayout((tuple(param.shape),), 1)
            joined = join_state(layout, 0, param.numel(), [found], param.device)
            state[index] = {k: v if is_number(k, v) else v.view(param.shape) for k, v in joined.items()}
    return {"state": state, "param_groups": _numbered_groups(optimizer)}


def load_state_dict_(optimizer: ZeroOptimizer, saved: Saved | Sequence[Saved]) -> None:
    """Read a full state dict (also the plain optimizer's), or the list of all ranks' sharded ones.

    Communication: none; with `master_dtype` one all_gather a bucket.
    Raises: ValueError that says what differs, if it is another model's or pieces are missing.
    """
    states = [saved] if isinstance(saved, dict) else list(saved)
    _check_saved(optimizer, states)
    for own, other in zip(optimizer.param_groups, states[0]["param_groups"], strict=True):
        own.update({key: value for key, value in other.items() if key != "params"})
    for index, part, key, layout, start in _parts(optimizer):
        found = [one["state"][index] for one in states if index in one["state"]]
        loaded = join_state(layout, start, part.numel(), [found], key.device)
        master = loaded.pop("master", None)
        if _owns_masters(optimizer) and master is not None:
            part.detach().copy_(master.view(part.shape))
        optimizer.inner.state.pop(key, None)
        if loaded:
            shaped = {k: v if is_number(k, v) else v.view(part.shape) for k, v in loaded.items()}
            optimizer.inner.state[key] = shaped
    if _owns_masters(optimizer):
        optimizer.gather_parameters()


def _owns_masters(optimizer: ZeroOptimizer) -> bool:
    return any(bucket.flat.is_copy for bucket in optimizer.buckets)


def _parts(optimizer: ZeroOptimizer) -> Iterator[tuple[int, nn.Parameter, nn.Parameter, FlatLayout, int]]:
    """Yield of every parameter of which this rank has a part: number, part, key, layout, first element."""
    optimizer.refresh_masters()
    for bucket in optimizer.buckets:
        layout = bucket.flat.layout
        for position, first, _ in layout.overlaps(*bucket.flat.range):
            alone = FlatLayout((layout.shapes[position],), 1)
            part, key = bucket.parts[position], bucket.state_keys[position]
            yield bucket.indices[position], part, key, alone, first


def _numbered_groups(optimizer: ZeroOptimizer) -> list[dict[str, Any]]:
    numbers = iter(range(len(optimizer.params)))
    sized = zip(optimizer.param_groups, optimizer.group_sizes, strict=True)
    return [{**entry, "params": [next(numbers) for _ in range(size)]} for entry, size in sized]


def _check_saved(optimizer: ZeroOptimizer, states: Sequence[Saved]) -> None:
    sizes = [len(entry["params"]) for entry in states[0]["param_groups"]]
    if sizes != optimizer.group_sizes:
        raise ValueError(
            f"the saved parameter groups must be this optimizer's; got groups of {sizes} parameters for "
            f"{optimizer.group_sizes}. Build the optimizer as it was when it was saved."
        )
    want = {str(index): param.shape for index, param in enumerate(optimizer.params)}
    check_saved_state(want, [one["state"] for one in states])
