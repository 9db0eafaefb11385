"""Pieces of tensors, cut by one number of ranks and read by another."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from course_lib.checkpoint.pieces import (
    Piece,
    check_same_tensors,
    fill_from_pieces_,
    join_pieces,
    pieces_of,
    whole,
)
from course_lib.comm.flat import FlatLayout

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=0, max_size=5)


def numbered(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Tensors whose elements all differ."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    parts = torch.arange(1.0, sum(sizes) + 1).split(sizes) if sizes else []
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


@settings(max_examples=60, deadline=None)
@given(shapes=SHAPES, saved_by=st.integers(1, 5), loaded_by=st.integers(1, 5))
def test_pieces_of_any_number_of_ranks_fill_the_shards_of_any_other(
    shapes: list[tuple[int, ...]], saved_by: int, loaded_by: int
) -> None:
    tensors = numbered(shapes)
    saved = FlatLayout.of(tensors, saved_by)
    flat = torch.zeros(saved.padded_numel)
    saved.flatten_(flat, tensors)
    pieces: dict[int, list[Piece]] = {}
    for rank in range(saved_by):
        start, stop = saved.shard_range(rank)
        for index, piece in pieces_of(saved, flat[start:stop], start).items():
            pieces.setdefault(index, []).append(piece)
    for index, found in pieces.items():
        assert torch.equal(join_pieces(found), tensors[index])
    loaded = FlatLayout.of(tensors, loaded_by)
    want = torch.zeros(loaded.padded_numel)
    loaded.flatten_(want, tensors)
    for rank in range(loaded_by):
        start, stop = loaded.shard_range(rank)
        local = torch.zeros(stop - start)
        fill_from_pieces_(loaded, local, start, pieces)
        assert torch.equal(local, want[start:stop])


def test_missing_pieces_are_named() -> None:
    layout = FlatLayout(((4,),), 1)
    half = Piece(shape=[4], offset=0, values=torch.ones(2))
    with pytest.raises(ValueError, match=r"cover elements 0 .. 3 of a tensor; got none for 2 of them"):
        fill_from_pieces_(layout, torch.zeros(4), 0, {0: [half]})
    with pytest.raises(ValueError, match="missing: b; unexpected: c; shapes: a \\[3\\] for \\[2\\]"):
        check_same_tensors({"a": (2,), "b": ()}, {"a": (3,), "c": ()}, "it")
    assert torch.equal(join_pieces([whole(torch.ones(2, 3))]), torch.ones(2, 3))
