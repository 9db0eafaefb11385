"""Figures of who holds what: the numbers under them and the order of moves."""

import pytest

from course_lib.viz.sharding import (
    draw_flat_vector,
    draw_fsdp_moves,
    draw_mesh,
    draw_owners_and_shards,
    draw_zero_stages,
)


def test_stages_hold_what_the_formula_says() -> None:
    figure = draw_zero_stages(num_ranks=8)
    held = [2 + 2 + 12, 2 + 2 + 12 / 8, 2 + (2 + 12) / 8, 16 / 8]
    assert [float(ax.get_xlabel().split()[0]) for ax in figure.axes] == held


def test_ranges_of_a_sharded_state_fill_it_once() -> None:
    boxes = draw_zero_stages(num_ranks=4).axes[3].patches
    filled = sum(box.get_height() for box in boxes if box.get_fill())  # type: ignore[attr-defined]
    assert filled == 2 + 2 + 12


def test_a_unit_is_gathered_twice_and_the_last_one_once() -> None:
    texts = [text.get_text() for text in draw_fsdp_moves(num_units=4).axes[0].texts]
    assert [texts.count(f"gather {unit}") for unit in range(4)] == [2, 2, 2, 1]
    assert [texts.count(f"reduce {unit}") for unit in range(4)] == [1, 1, 1, 1]


def test_equal_places_hold_equal_shards() -> None:
    texts = [text.get_text() for text in draw_mesh(num_servers=2, per_server=3).axes[0].texts]
    assert [text for text in texts if "shard 1" in text] == ["GPU 1\nshard 1", "GPU 4\nshard 1"]
    with pytest.raises(ValueError, match="per_server must be"):
        draw_mesh(per_server=9)


def test_shards_cover_the_flat_vector_with_its_padding() -> None:
    texts = [text.get_text() for text in draw_flat_vector({"weight": 9, "bias": 4}, 3).axes[0].texts]
    assert texts == ["weight", "bias", "0", *(f"rank {rank}: 5 elements" for rank in range(3))]


def test_owners_keep_whole_units_and_shards_are_equal() -> None:
    figure = draw_owners_and_shards({"embedding": 1000, "block": 8000, "head": 3000}, 2)
    heights = [[(bar.get_x(), bar.get_height()) for bar in ax.patches] for ax in figure.axes]  # type: ignore[attr-defined]
    kept = [
        [sum(height for x, height in bars if round(x + 0.35) == rank) for rank in (0, 1)] for bars in heights
    ]
    assert kept == [[4, 8], [6, 6]]
