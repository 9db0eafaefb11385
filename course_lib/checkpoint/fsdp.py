"""Save and load a model sharded by `FSDP`, and its optimizer, by the names and shapes of the unsharded model.

Saved whole, it is the plain model's; saved in shards, each rank writes what it holds. Either is read by any
number of ranks, on any mesh, cut into any units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.checkpoint.files import Header, load_shards, save_shard, states_for
from course_lib.checkpoint.pieces import (
    Piece,
    check_covered,
    check_same_tensors,
    fill_from_pieces_,
    join_pieces,
    pieces_of,
    whole,
)
from course_lib.checkpoint.state import (
    Entries,
    check_optimizer_class,
    check_saved_state,
    is_number,
    join_state,
    split_state,
)
from course_lib.comm.flat import FlatLayout, all_gather_flat
from course_lib.parallel.fsdp import FSDP, FlatParam

State = dict[str, Tensor]
Saved = dict[str, Any]  # {"state": {name: entries}, "param_groups": [...]}


# ---- to files and from them


def save(folder: Path | str, model: FSDP, optimizer: Optimizer, *, step: int = 0) -> Path:
    """Write what this rank keeps of the model and its optimizer into a file of its own; return its path.

    All ranks call it. The checkpoint is whole when all have returned: put a barrier before you rely on it.
    """
    own = _header(model, step)
    state = {
        "model": sharded_state_dict(model),
        "optimizer": optimizer_state_dict(model, optimizer),
        "optimizer_class": type(optimizer).__name__,
    }
    return save_shard(folder, state, rank=own.rank, mesh=own.mesh, axes=own.axes, step=step)


def load_(folder: Path | str, model: FSDP, optimizer: Optimizer) -> int:
    """Read what any number of ranks saved; return the step at which they did.

    All is checked before the first value is written, the optimizer's too.
    Raises: ValueError that names what is damaged, missing, or of another model, optimizer or mesh.
    """
    shards = load_shards(folder)
    states = states_for(shards, _header(model, 0))
    check_optimizer_class(optimizer, states[0]["optimizer_class"])
    weights, kept = [state["model"] for state in states], [state["optimizer"] for state in states]
    _checked_sources(model, weights)
    _checked_states(model, optimizer, kept)
    load_state_dict_(model, weights)
    load_optimizer_state_dict_(model, optimizer, kept)
    return shards[0].header.step


def _header(model: FSDP, step: int) -> Header:
    mesh = model.mesh
    axes = [*model.axes, "dp_replicate"]
    return Header(rank=mesh.rank(*mesh.sizes), mesh=mesh.sizes, axes=axes, step=step, shapes={})


# ---- the model


@torch.no_grad()
def full_state_dict(model: FSDP) -> State:
    """Return, on every rank, the state_dict of the unsharded model, in the parameters' own dtype.

    Communication: one all_gather a unit. Memory: the whole model.
    """
    state: State = {}
    for flat in model.flats():
        for slot, value in zip(flat.slots, _gathered(flat), strict=True):
            state.update(dict.fromkeys(slot.aliases, value.clone()))
    return {**state, **_buffers(model.module)}


def sharded_state_dict(model: FSDP) -> dict[str, Piece]:
    """Return what this rank keeps, by parameter; buffers whole. Without communication."""
    pieces: dict[str, Piece] = {}
    for flat in model.flats():
        held = pieces_of(flat.layout, flat.shard, flat.flat.range[0])
        pieces.update({flat.slots[index].name: piece for index, piece in held.items()})
    return {**pieces, **{name: whole(value) for name, value in _buffers(model.module).items()}}


@torch.no_grad()
def load_state_dict_(model: FSDP, state: State | Sequence[dict[str, Piece]]) -> None:
    """Read a full state dict, or the list of all ranks' sharded ones, saved by any number of ranks.

    Raises: ValueError that says what differs, if it is another model's.
    """
    sources = _checked_sources(model, [state] if isinstance(state, Mapping) else list(state))
    for flat in model.flats():
        by_index = {index: sources.get(slot.name, ()) for index, slot in enumerate(flat.slots)}
        fill_from_pieces_(flat.layout, flat.shard, flat.flat.range[0], by_index)
    for name, buffer in _buffers(model.module).items():
        buffer.copy_(join_pieces(sources[name][:1]))


# ---- its optimizer


def optimizer_state_dict(model: FSDP, optimizer: Optimizer) -> Saved:
    """Return this rank's optimizer state by parameter: {"state": {name: entries}, "param_groups": ...}.

    For an optimizer of `model.parameters()`, in any groups. Without communication.
    """
    state: dict[str, Entries] = {}
    for name, part, layout, start in _parts(model):
        kept = {
            key: value if is_number(key, value) else value.reshape(-1) for key, value in _of(optimizer, part)
        }
        entries = split_state(layout, start, kept)
        if entries:
            state[name] = entries[0]
    groups = [{key: v for key, v in group.items() if key != "params"} for group in optimizer.param_groups]
    return {"state": state, "param_groups": groups}


def load_optimizer_state_dict_(model: FSDP, optimizer: Optimizer, saved: Saved | Sequence[Saved]) -> None:
    """Read the list of all ranks' `optimizer_state_dict`s, saved by any number of ranks, or a plain one.

    A plain optimizer's state_dict, of the unsharded model and in the same groups, counts parameters in the
    order of its groups.
    Raises: ValueError that says what differs, if it is another model's or has other groups.
    """
    saved = [saved] if isinstance(saved, Mapping) else list(saved)
    states = _checked_states(model, optimizer, saved)
    for name, part, layout, start in _parts(model):
        found = [one[name] for one in states if name in one]
        entries = join_state(layout, start, part.numel(), [found], part.device)
        optimizer.state.pop(part, None)
        if entries:
            shaped = {k: v if is_number(k, v) else v.view(part.shape) for k, v in entries.items()}
            optimizer.state[part] = shaped
    for group, other in zip(optimizer.param_groups, saved[0]["param_groups"], strict=True):
        group.update({key: value for key, value in other.items() if key != "params"})


def _checked_states(model: FSDP, optimizer: Optimizer, saved: Sequence[Saved]) -> list[Mapping[str, Entries]]:
    """Return saved states by parameter name; raise ValueError unless they are of this optimizer and whole."""
    groups = len(saved[0]["param_groups"])
    if groups != len(optimizer.param_groups):
        raise ValueError(
            f"the saved parameter groups must be this optimizer's; got {groups} for "
            f"{len(optimizer.param_groups)}. Build the optimizer as it was when it was saved."
        )
    states = [_by_name(model, optimizer, one) for one in saved]
    check_saved_state(_shapes(model), states)
    return states


def _by_name(model: FSDP, optimizer: Optimizer, saved: Saved) -> Mapping[str, Entries]:
    """Return saved state by parameter name, also that of a plain optimizer, which has numbers."""
    if not any("params" in group for group in saved["param_groups"]):
        return saved["state"]  # type: ignore[no-any-return]
    theirs = [group["params"] for group in saved["param_groups"]]
    names = {id(part): name for name, part, _, _ in _parts(model)}
    ours = [[names[id(part)] for part in group["params"]] for group in optimizer.param_groups]
    sizes = [len(group) for group in theirs], [len(group) for group in ours]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the saved parameter groups must be this optimizer's; got groups of {sizes[0]} parameters for "
            f"{sizes[1]}. Build the optimizer as it was when it was saved."
        )
    name_of = dict(zip(chain(*theirs), chain(*ours), strict=True))
    return {name_of[number]: entries for number, entries in saved["state"].items()}


def _of(optimizer: Optimizer, part: nn.Parameter) -> list[tuple[str, Any]]:
    return list(optimizer.state.get(part, {}).items())


def _parts(model: FSDP) -> Iterator[tuple[str, nn.Parameter, FlatLayout, int]]:
    """Yield of every parameter its name, this rank's part, its own layout, and where the part begins."""
    for flat in model.flats():
        start, stop = flat.flat.range
        offsets = {index: offset for index, offset, _ in flat.layout.overlaps(start, stop)}
        for index, (slot, part) in enumerate(zip(flat.slots, flat.parts, strict=True)):
            yield slot.name, part, FlatLayout((flat.layout.shapes[index],), 1), offsets.get(index, 0)


def _gathered(flat: FlatParam) -> list[Tensor]:
    """Return the parameters in their own dtype, as views of a fresh vector."""
    full = torch.empty(flat.layout.padded_numel, dtype=flat.shard.dtype, device=flat.shard.device)
    all_gather_flat(full, flat.shard, flat.flat.group)
    return flat.layout.unflatten(full)


def _buffers(module: nn.Module) -> State:
    """Return the buffers that a state_dict of the unsharded model holds."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, inner in module.named_modules(remove_duplicate=False)
        for name, buffer in inner._buffers.items()
        if buffer is not None and name not in inner._non_persistent_buffers_set
    }


def _shapes(model: FSDP) -> dict[str, Sequence[int]]:
    """Return the shapes of the unsharded parameters by name."""
    return {
        slot.name: shape
        for flat in model.flats()
        for slot, shape in zip(flat.slots, flat.layout.shapes, strict=True)
    }


def _checked_sources(model: FSDP, saved: Sequence[Mapping[str, Any]]) -> dict[str, list[Piece]]:
    """Return all pieces by name; raise ValueError unless they are of this model and whole."""
    sources: dict[str, list[Piece]] = {}
    for name, value in chain.from_iterable(one.items() for one in saved):
        sources.setdefault(name, []).append(whole(value) if isinstance(value, Tensor) else value)
    buffers = {name: buffer.shape for name, buffer in _buffers(model.module).items()}
    want = {**buffers, **_shapes(model)}
    aliases = {alias for flat in model.flats() for slot in flat.slots for alias in slot.aliases}
    got = {n: p[0]["shape"] for n, p in sources.items() if n in want or n not in aliases}
    check_same_tensors(want, got, "the state dict")
    check_covered(sources)
    return sources
