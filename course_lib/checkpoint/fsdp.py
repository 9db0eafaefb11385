"""Save and load a model sharded by `FSDP`, and its optimizer, by the names and shapes of the unsharded model.

Saved whole, it is the plain model's; saved in shards, each rank writes what it holds. Either is read by any
number of ranks, on any mesh, cut into any units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.checkpoint.pieces import (
    Piece,
    check_same_tensors,
    fill_from_pieces_,
    join_pieces,
    pieces_of,
    whole,
)
from course_lib.checkpoint.state import Entries, check_saved_state, join_state, split_state
from course_lib.parallel.fsdp import FSDP, FlatParam

State = dict[str, Tensor]
Saved = dict[str, Any]  # {"state": {name: entries}, "param_groups": [...]}


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
        held = pieces_of(flat.layout, flat.shard.detach(), flat.local_range()[0])
        pieces.update({flat.slots[index].name: piece for index, piece in held.items()})
    return {**pieces, **{name: whole(value) for name, value in _buffers(model.module).items()}}


@torch.no_grad()
def load_state_dict_(model: FSDP, state: State | Sequence[dict[str, Piece]]) -> None:
    """Read a full state dict, or the list of all ranks' sharded ones, saved by any number of ranks.

    Raises: ValueError that says what differs, if it is another model's.
    """
    saved: list[Any] = [state] if isinstance(state, Mapping) else list(state)
    sources: dict[str, list[Piece]] = {}
    for one in saved:
        for name, value in one.items():
            sources.setdefault(name, []).append(whole(value) if isinstance(value, Tensor) else value)
    buffers = _buffers(model.module)
    _check_model(model, sources, buffers)
    for flat in model.flats():
        by_index = {index: sources.get(slot.name, ()) for index, slot in enumerate(flat.slots)}
        fill_from_pieces_(flat.layout, flat.shard.detach(), flat.local_range()[0], by_index)
    for name, buffer in buffers.items():
        buffer.copy_(join_pieces(sources[name][:1]))


def optimizer_state_dict(model: FSDP, optimizer: Optimizer) -> Saved:
    """Return this rank's optimizer state by parameter: {"state": {name: entries}, "param_groups": ...}.

    For an optimizer of `model.parameters()`, in any groups. Without communication.
    """
    state: dict[str, Entries] = {}
    for flat in model.flats():
        split = split_state(flat.layout, flat.local_range()[0], optimizer.state.get(flat.shard, {}))
        state.update({flat.slots[index].name: entries for index, entries in split.items()})
    groups = [{key: v for key, v in group.items() if key != "params"} for group in optimizer.param_groups]
    return {"state": state, "param_groups": groups}


def load_optimizer_state_dict_(model: FSDP, optimizer: Optimizer, saved: Sequence[Saved]) -> None:
    """Read the list of all ranks' `optimizer_state_dict`s, saved by any number of ranks.

    Raises: ValueError that says what differs, if it is another model's or has other groups.
    """
    groups = len(saved[0]["param_groups"])
    if groups != len(optimizer.param_groups):
        raise ValueError(
            f"the saved parameter groups must be this optimizer's; got {groups} for "
            f"{len(optimizer.param_groups)}. Build the optimizer as it was when it was saved."
        )
    states = [one["state"] for one in saved]
    check_saved_state(_shapes(model), states)
    for flat in model.flats():
        _load_entries_(flat, optimizer, states)
    for group, other in zip(optimizer.param_groups, saved[0]["param_groups"], strict=True):
        group.update(other)


def _load_entries_(flat: FlatParam, optimizer: Optimizer, states: Sequence[Mapping[str, Entries]]) -> None:
    """Fill the optimizer's state of one shard from what ranks saved by parameter name."""
    start, stop = flat.local_range()
    found = [[one[slot.name] for one in states if slot.name in one] for slot in flat.slots]
    entries = join_state(flat.layout, start, stop - start, found, flat.shard.device)
    if entries:
        optimizer.state[flat.shard] = entries


def _gathered(flat: FlatParam) -> list[Tensor]:
    """Return the parameters in their own dtype, as views of a fresh vector."""
    full = torch.empty(flat.layout.padded_numel, dtype=flat.shard.dtype, device=flat.shard.device)
    flat.gather_into(full, flat.shard.detach())
    return flat.layout.unflatten(full)


def _buffers(module: nn.Module) -> State:
    """Return the buffers that a state_dict of the unsharded model holds."""
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in module.state_dict().items() if name not in parameters}


def _shapes(model: FSDP) -> dict[str, Sequence[int]]:
    """Return the shapes of the unsharded parameters by name."""
    return {
        slot.name: shape
        for flat in model.flats()
        for slot, shape in zip(flat.slots, flat.layout.shapes, strict=True)
    }


def _check_model(model: FSDP, sources: Mapping[str, Sequence[Piece]], buffers: State) -> None:
    want = {**{name: buffer.shape for name, buffer in buffers.items()}, **_shapes(model)}
    aliases = {alias for flat in model.flats() for slot in flat.slots for alias in slot.aliases}
    got = {n: p[0]["shape"] for n, p in sources.items() if n in want or n not in aliases}
    check_same_tensors(want, got, "the state dict")
