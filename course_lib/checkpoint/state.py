"""Optimizer state of a shard, told apart by parameter, so that any other cut can read it.

An optimizer that steps a shard of a flat vector has, say, one `exp_avg` for parts of many parameters. Saved
as pieces of each parameter's own `exp_avg`, it fits any number of ranks, and the unsharded optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from course_lib.checkpoint.pieces import (
    Piece,
    check_covered,
    check_same_tensors,
    fill_from_pieces_,
    pieces_of,
    whole,
)
from course_lib.comm.flat import FlatLayout

Entries = dict[str, Any]  # such as {"step": 3, "exp_avg": Tensor or Piece}

_NUMBERS = ("step", "mu_product", "eta", "mu")  # entries of torch optimizers that are one value a tensor


def is_number(key: str, value: Any) -> bool:
    """Whether an entry of an optimizer's state is one value for the whole tensor, such as Adam's step."""
    return key in _NUMBERS or not isinstance(value, dict | Tensor)


def copied(value: Any) -> Any:
    """Return an independent copy of a tensor; anything else as it is."""
    return value.clone() if isinstance(value, Tensor) else value


def shape_of(value: Piece | Tensor) -> list[int]:
    """Return the shape of the whole tensor."""
    return list(value["shape"] if isinstance(value, dict) else value.shape)


def check_saved_state(
    want: Mapping[str, Sequence[int]], states: Iterable[Mapping[Any, Mapping[str, Any]]]
) -> None:
    """Raise ValueError that says which tensors of saved optimizer states are not those of `want`, or cut.

    A tensor without state is none that is missing: not every optimizer keeps something of every parameter.
    """
    got: dict[str, Sequence[int]] = dict(want)
    pieces: dict[str, list[Piece]] = {}
    for state in states:
        for name, entries in state.items():
            got.setdefault(str(name), ())  # only Adam's step: a rank may hold nothing else of a tensor
            for key, value in entries.items():
                if not is_number(key, value):
                    if shape_of(value) != list(want.get(str(name), ())):
                        got[str(name)] = shape_of(value)
                    piece = whole(value) if isinstance(value, Tensor) else value
                    pieces.setdefault(f"{key} of {name}", []).append(piece)
    check_same_tensors(want, got, "the optimizer state")
    check_covered(pieces)


def check_optimizer_class(optimizer: Optimizer, saved: str) -> None:
    """Raise ValueError if a state was saved by an optimizer of another class: it keeps other values."""
    if type(optimizer).__name__ != saved:
        raise ValueError(
            f"the optimizer must be the one that was saved; got {type(optimizer).__name__} for a saved "
            f"{saved}. Build a {saved}, or load the model alone."
        )


def split_state(layout: FlatLayout, start: int, state: Mapping[str, Any]) -> dict[int, Entries]:
    """Return the state of flat[start : start + len] by tensor: what the range holds of each entry."""
    split: dict[int, Entries] = {}
    for key, value in state.items():
        if is_number(key, value):
            parts: dict[int, Any] = dict.fromkeys(range(len(layout.shapes)), value)
        else:
            parts = dict(pieces_of(layout, value, start))
        for index, part in parts.items():
            split.setdefault(index, {})[key] = copied(part)
    return split


def join_state(
    layout: FlatLayout, start: int, numel: int, saved: Sequence[Sequence[Entries]], device: torch.device
) -> Entries:
    """Return the state of flat[start : start + numel] from what was saved of each tensor, whole or in pieces.

    A tensor that had no state yet counts as zeros.
    """
    keys = sorted({key for entries in saved for entry in entries for key in entry})
    joined: Entries = {}
    for key in keys:
        values = [[entry[key] for entry in entries if key in entry] for entries in saved]
        example = next(value for several in values for value in several)
        if is_number(key, example):
            joined[key] = copied(example)
            continue
        dtype = example["values"].dtype if isinstance(example, dict) else example.dtype
        sources: dict[int, list[Piece]] = {}
        for index, several in enumerate(values):
            zeros = torch.zeros(layout.shapes[index], dtype=dtype)
            sources[index] = [whole(v) if isinstance(v, Tensor) else v for v in several or [zeros]]
        joined[key] = torch.zeros(numel, dtype=dtype, device=device)
        fill_from_pieces_(layout, joined[key], start, sources)
    return joined
