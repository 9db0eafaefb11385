"""Pieces of tensors: which elements of a whole one some rank holds, so that any number of ranks can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from course_lib.comm.flat import FlatLayout


class Piece(TypedDict):
    """Elements offset .. offset + len(values) of a flattened tensor of this shape, as plain data."""

    shape: list[int]
    offset: int
    values: Tensor


def pieces_of(layout: FlatLayout, local: Tensor, start: int) -> dict[int, Piece]:
    """Return what `local` = flat[start : start + len] holds of each tensor, by its index; copied."""
    return {
        index: Piece(shape=list(layout.shapes[index]), offset=offset, values=local[part].clone())
        for index, offset, part in layout.overlaps(start, start + local.numel())
    }


def fill_from_pieces_(
    layout: FlatLayout, local: Tensor, start: int, sources: Mapping[int, Sequence[Piece]]
) -> None:
    """Fill `local` = flat[start : start + len] from pieces of the tensors, cut however they were.

    Raises: ValueError if pieces leave elements of a tensor uncovered.
    """
    for index, offset, part in layout.overlaps(start, start + local.numel()):
        _fill(local[part], offset, sources.get(index, ()))


def whole(tensor: Tensor) -> Piece:
    """Return the piece that is all of a tensor."""
    return Piece(shape=list(tensor.shape), offset=0, values=tensor.detach().reshape(-1))


def join_pieces(pieces: Sequence[Piece]) -> Tensor:
    """Return the whole tensor of which these are all the pieces."""
    shape = torch.Size(pieces[0]["shape"])
    flat = torch.empty(shape.numel(), dtype=pieces[0]["values"].dtype)
    _fill(flat, 0, pieces)
    return flat.view(shape)


def _fill(target: Tensor, offset: int, pieces: Sequence[Piece]) -> None:
    """Fill target, which is elements offset .. offset + len of a tensor."""
    end, missing = offset + target.numel(), torch.ones(target.numel(), dtype=torch.bool)
    for piece in pieces:
        first = max(offset, piece["offset"])
        last = min(end, piece["offset"] + piece["values"].numel())
        if first < last:
            values = piece["values"][first - piece["offset"] : last - piece["offset"]]
            target[first - offset : last - offset].copy_(values)
            missing[first - offset : last - offset] = False
    if missing.any():
        raise ValueError(
            f"saved pieces must cover elements {offset} .. {end - 1} of a tensor; got none for "
            f"{int(missing.sum())} of them. Load the state dicts of all ranks that saved, as one list."
        )


def check_covered(sources: Mapping[Any, Sequence[Piece]]) -> None:
    """Raise ValueError that names a tensor whose pieces leave some of its elements out."""
    for name, pieces in sources.items():
        end = 0
        for piece in sorted(pieces, key=lambda piece: piece["offset"]):
            if piece["offset"] <= end:
                end = max(end, piece["offset"] + piece["values"].numel())
        numel = torch.Size(pieces[0]["shape"]).numel() if pieces else 0
        if end < numel:
            raise ValueError(
                f"saved pieces must cover all {numel} elements of {name}; got none for element {end}. "
                "Load the state dicts of all ranks that saved, as one list."
            )


def check_same_tensors(
    want: Mapping[str, Sequence[int]], got: Mapping[str, Sequence[int]], what: str
) -> None:
    """Raise ValueError that says how names and shapes of a saved state differ from the model's."""
    missing = [name for name in want if name not in got and 0 not in want[name]]  # empty: in no piece
    unexpected = [name for name in got if name not in want]
    shapes = [
        f"{name} {list(got[name])} for {list(want[name])}"
        for name in want
        if name in got and list(got[name]) != list(want[name])
    ]
    found = {"missing": missing, "unexpected": unexpected, "shapes": shapes}
    text = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in found.items() if names)
    if text:
        raise ValueError(
            f"{what} must be of this model; got {text}. Build the model as it was when it was saved."
        )
