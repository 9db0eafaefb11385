"""Flat layouts, pieces, and the two collectives on them."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from course_lib.comm.flat import all_gather_flat, reduce_scatter_flat
from course_lib.parallel._sharded.layout import (
    FlatLayout,
    Piece,
    check_same_tensors,
    clip_sharded_norm_,
    join_pieces,
    whole,
)
from course_lib.ranks import run_ranks

SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=0, max_size=5)


def numbered(shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Tensors whose elements all differ."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    parts = torch.arange(1.0, sum(sizes) + 1).split(sizes) if sizes else []
    return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


@settings(max_examples=60, deadline=None)
@given(shapes=SHAPES, num_shards=st.integers(1, 6))
def test_flatten_and_unflatten_are_inverse_and_padding_is_zero(
    shapes: list[tuple[int, ...]], num_shards: int
) -> None:
    tensors = numbered(shapes)
    layout = FlatLayout.of(tensors, num_shards)
    assert layout.numel == sum(tensor.numel() for tensor in tensors)
    assert 0 <= layout.padded_numel - layout.numel < max(num_shards, 1) + (layout.numel == 0)
    flat = torch.full((layout.padded_numel,), -1.0)
    layout.flatten_(flat, tensors)
    assert not flat[layout.numel :].any()
    for view, tensor in zip(layout.unflatten(flat), tensors, strict=True):
        assert torch.equal(view, tensor)
        assert view.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    ends = [layout.shard_range(rank) for rank in range(num_shards)]
    assert ends[0][0] == 0
    assert ends[-1][1] == layout.padded_numel
    assert all(stop == start for (_, stop), (start, _) in pairwise(ends))


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
        for index, piece in saved.pieces(flat[start:stop], start).items():
            pieces.setdefault(index, []).append(piece)
    for index, found in pieces.items():
        assert torch.equal(join_pieces(found), tensors[index])
    loaded = FlatLayout.of(tensors, loaded_by)
    want = torch.zeros(loaded.padded_numel)
    loaded.flatten_(want, tensors)
    for rank in range(loaded_by):
        start, stop = loaded.shard_range(rank)
        local = torch.zeros(stop - start)
        loaded.load_(local, start, pieces)
        assert torch.equal(local, want[start:stop])


def test_missing_pieces_are_named() -> None:
    layout = FlatLayout(((4,),), 1)
    half = Piece(shape=[4], offset=0, values=torch.ones(2))
    with pytest.raises(ValueError, match=r"cover elements 0 .. 3 of a tensor; got none for 2 of them"):
        layout.load_(torch.zeros(4), 0, {0: [half]})
    with pytest.raises(ValueError, match="missing: b; unexpected: c; shapes: a \\[3\\] for \\[2\\]"):
        check_same_tensors({"a": (2,), "b": ()}, {"a": (3,), "c": ()}, "it")
    assert torch.equal(join_pieces([whole(torch.ones(2, 3))]), torch.ones(2, 3))


def gather_and_scatter() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rank, n = dist.get_rank(), dist.get_world_size()
    full = torch.zeros(n * 3)
    full[rank * 3 : rank * 3 + 3] = rank + 1
    all_gather_flat(full, full[rank * 3 : rank * 3 + 3])  # in place
    shard = torch.empty(3)
    work = reduce_scatter_flat(shard, full * (rank + 1), async_op=True)
    if work is not None:
        work.wait()
    grads = [torch.full((2,), float(rank + 1)), torch.empty(0)]
    norm = clip_sharded_norm_(grads, 0.5, torch.device("cpu"))
    return full, shard, norm, grads[0]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_gather_reduce_scatter_and_norm(world_size: int) -> None:
    want = torch.arange(1.0, world_size + 1).repeat_interleave(3)
    want_norm = sum(2 * (rank + 1) ** 2 for rank in range(world_size)) ** 0.5
    for rank, (full, shard, norm, grad) in enumerate(run_ranks(gather_and_scatter, world_size)):
        assert torch.equal(full, want)
        assert torch.equal(shard, torch.full((3,), (rank + 1.0) * sum(range(1, world_size + 1))))
        assert norm.item() == pytest.approx(want_norm)
        assert grad[0].item() == pytest.approx(0.5 * (rank + 1) / want_norm, rel=1e-4)
