import pytest

from course_lib.viz.memory_bars import draw_memory_bars


def test_heights_and_formula_lines():
    figure = draw_memory_bars(
        {"a": {"parameters": 2e6, "optimizer": 3e6}, "b": {"parameters": 1e6}}, formula=[5e6, 1e6]
    )
    axes = figure.axes[0]
    assert [round(p.get_height() + p.get_y()) for p in axes.patches] == [2, 1, 5, 1]
    assert [line.get_ydata()[0] for line in axes.lines] == [5, 1]
    assert axes.get_ylabel() == "MB per rank"


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match="optimiser"):
        draw_memory_bars({"a": {"optimiser": 1}})
    with pytest.raises(ValueError, match="2 for 1 bars"):
        draw_memory_bars({"a": {"other": 1}}, formula=[1, 2])
