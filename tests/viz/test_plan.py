"""The planner's panel: a layout's terms and memory, or why there is no such layout."""

from course_lib.viz.plan import draw_layout


def test_a_layout_is_drawn_with_its_step_and_whether_it_fits() -> None:
    words = draw_layout(tp=8, pp=16, virtual_stages=7, memory_gb=80).alt
    assert "does not fit into 80 GB" in words
    assert ", fits into 192 GB" in draw_layout(tp=8, pp=16, virtual_stages=7, memory_gb=192).alt


def test_a_layout_that_cannot_be_says_why() -> None:
    assert "must divide the 128 sequences" in draw_layout(tp=2, virtual_stages=7, seq_len=131_072).alt
