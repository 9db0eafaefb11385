"""Figures of recomputation: curves end where the trace does, the frontier holds what nothing beats."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from course_lib.ranks.fake import fake_rank
from course_lib.trace import RankTrace, mark
from course_lib.viz.recompute import Law, draw_cost_laws, draw_frontier, draw_step_memory, frontier


def step(recompute: bool) -> RankTrace:
    with fake_rank(1) as recorder:
        layers = [
            torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Linear(64, 8))
            for _ in "abc"
        ]
        x = torch.ones(100, 8)
        mark("begins")
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False) if recompute else layer(x)
        x.sum().backward()
        mark("ends")
    return recorder.result()


def test_the_memory_of_a_step() -> None:
    runs = {"all": step(False), "again": step(True)}
    figure = draw_step_memory(runs, predicted_bytes=1e5, title="a step")
    (ax,) = figure.axes
    high, low = (max(map(float, ax.lines[i].get_ydata())) for i in (0, 2))  # type: ignore[arg-type]
    peak = runs["all"].peak_bytes("activations", start="begins", end="ends")
    assert high == pytest.approx((peak - runs["all"].live_bytes_at("begins", "activations")) / 1e3)
    assert low < high / 2
    assert "all: 163 kB" in figure.alt
    assert ax.get_legend_handles_labels()[1][-1] == "you predicted"


def test_cost_laws_and_their_dots() -> None:
    laws = [Law("all", lambda n: n, lambda n: n), Law("none", lambda n: n * n, lambda _: 1)]
    figure = draw_cost_laws(laws, [2, 4, 8], {"none": {4: (16, 1)}})
    runs, kept = figure.axes
    assert [list(line.get_xdata()) for line in runs.lines] == [[2, 4, 8], [], [2, 4, 8], [4]]  # type: ignore[arg-type]
    assert list(kept.lines[3].get_ydata()) == [1]  # type: ignore[arg-type]
    assert "At 8 layers: all 8 runs and 8 kept; none 64 runs and 1 kept" in figure.alt
    with pytest.raises(ValueError, match=r"must be of laws \['all'\]; got \['none'\]"):
        draw_cost_laws(laws[:1], [2], {"none": {}})


def test_the_frontier() -> None:
    points = {
        "all": (0.0, 9e6),
        "worse": (0.2, 9.5e6),
        "some": (0.2, 4e6),
        "thick": (1.0, 5e6),
        "each": (1.0, 1e6),
    }
    assert frontier(points) == ["all", "some", "each"]
    figure = draw_frontier(points, predicted=(0.5, 3e6))
    assert "thick repeats 100% and keeps 5" in figure.alt
    assert figure.axes[0].get_ylabel() == "activations at the peak, MB"
