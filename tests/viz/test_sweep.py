"""The figure of a sweep: a line a combination, a cross where nothing fits, words for both."""

from typing import Any

import pytest

from course_lib.viz.sweep import draw_sweep

VARIED = {"gpus": ["8", "64", "512"], "model": ["a", "b"]}


def row(gpus: str, model: str, step_s: float, none: str = "") -> dict[str, Any]:
    found = {"gpus": gpus, "model": model, "none": none}
    if none:
        return found
    between = {"step_low_s": 0.9 * step_s, "step_high_s": 1.2 * step_s}
    return found | between | {"step_s": step_s, "tflops_per_gpu": 500.0, "days": 10 * step_s}


ROWS = [
    row(g, m, 80 / int(g), "too large" if (g, m) == ("8", "b") else "") for g in VARIED["gpus"] for m in "ab"
]


def test_numbers_lie_along_x_and_names_are_lines() -> None:
    figure = draw_sweep(ROWS, VARIED)
    rate, days = figure.axes
    assert [text.get_text() for text in days.get_legend().get_texts()] == ["a", "b", "no layout fits"]
    assert rate.get_xlabel() == "GPUs"
    assert rate.get_xscale() == "log"
    assert days.get_title(loc="left") == "days of the run"
    a, b, crosses = days.lines
    assert list(a.get_ydata()) == [100, 12.5, pytest.approx(1.5625)]
    assert list(b.get_xdata()) == [64, 512]
    assert list(crosses.get_xdata()) == [8]
    assert "b: 8: none fits, 64: 500, 512: 500" in figure.alt
    assert len(rate.collections) == 2  # bands of published runs


def test_names_alone_are_points() -> None:
    rows = [row("8", m, 3.0) | {"step_low_s": None} for m in "ab"]
    figure = draw_sweep(rows, {"model": ["a", "b"]})
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["a", "b"]
    assert not figure.axes[0].collections
    assert figure.axes[0].get_legend() is None


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(ValueError, match="got none: too large"):
        draw_sweep([row("8", "b", 1.0, "too large")], {"gpus": ["8"], "model": ["b"]})
