"""Plans drawn on lanes: who waits for whom in each of them."""

import numpy as np
from matplotlib.collections import PolyCollection

from course_lib.viz.gantt import (
    draw_buckets,
    draw_halved_all_reduce,
    draw_offload,
    draw_owners,
    draw_steady_state,
)
from course_lib.viz.style import CourseFigure


def _boxes(figure: CourseFigure) -> dict[tuple[int, str], tuple[float, float]]:
    """(lane, text) -> begin and end."""
    ax = figure.axes[0]
    bars = [bar for bar in ax.collections if isinstance(bar, PolyCollection)]
    found = {}
    for bar, text in zip(bars, ax.texts, strict=False):
        points = np.asarray(bar.get_paths()[0].vertices)
        found[int(text.get_position()[1]), text.get_text()] = (points[:, 0].min(), points[:, 0].max())
    return found


def test_a_bucket_leaves_when_it_is_ready_and_the_one_before_has_left() -> None:
    boxes = _boxes(draw_buckets(num_buckets=5))
    for lane, keeps_up in ((1, True), (2, False)):
        free = 0.0
        for i in range(1, 6):
            ready = boxes[0, f"backward {i}"][1]
            begin, end = boxes[lane, f"bucket {i}"]
            assert begin == max(ready, free)
            assert keeps_up == (begin == ready) or i == 1
            free = end


def test_the_halves_of_an_all_reduce_are_as_long_as_the_whole() -> None:
    length = {text: end - begin for (_, text), (begin, end) in _boxes(draw_halved_all_reduce()).items()}
    halves = length["reduce_scatter (gradients)"], length["all_gather (parameters)"]
    assert sum(halves) == length["all_reduce (gradients)"]
    assert length["P/n"] < length["update P values"]


def test_nothing_is_updated_before_its_gradient_or_sent_before_its_update() -> None:
    boxes = _boxes(draw_offload(num_params=3))
    for i in range(3):
        assert boxes[0, f"gradient {i}"][1] <= boxes[1, f"update {i}"][0]
        assert boxes[1, f"update {i}"][1] <= boxes[2, f"parameter {i}"][0]


def test_one_rank_sends_a_unit_and_all_compute_it() -> None:
    boxes = _boxes(draw_owners(num_ranks=4))
    for unit in range(4):
        assert [lane for lane, text in boxes if text == f"sends unit {unit}"] == [unit]
        assert sorted(lane for lane, text in boxes if text == f"F{unit}") == [0, 1, 2, 3]


def test_in_the_steady_state_three_units_are_in_work() -> None:
    boxes = _boxes(draw_steady_state())
    begin, end = boxes[0, "backward of L"]
    meanwhile = {
        text for (lane, text), (start, stop) in boxes.items() if lane and begin <= start < stop <= end
    }
    assert meanwhile == {"gradients of L+1", "weights of L\u22121"}
