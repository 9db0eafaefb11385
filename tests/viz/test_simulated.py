"""A replayed run is drawn with its lanes, and labels in order."""

import pytest
import torch
import torch.distributed as dist

from course_lib.comm.launch import run_ranks
from course_lib.comm.trace import mark
from course_lib.cost.cluster import uniform
from course_lib.replay import Replay, replay
from course_lib.viz.simulated import draw_simulated


def _program() -> None:
    full = torch.empty(2 * 4096)
    mark("begins")
    work = dist.all_gather_into_tensor(full, torch.ones(4096), async_op=True)
    torch.ones(64, 64) @ torch.ones(64, 64)
    work.wait()
    dist.reduce_scatter_tensor(torch.empty(4096), full)


@pytest.fixture(scope="module")
def run() -> Replay:
    return replay(run_ranks(_program, 2, trace=True).trace, uniform(2, 1e-6, 1e9))


def test_every_run_has_its_lanes_and_labels(run: Replay) -> None:
    labels = {"all_gather_single": ["gather"], "reduce_scatter_single": ["reduce"]}
    axes = draw_simulated({"a": run, "b": run}, labels=labels, title="T").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text().strip() for text in axes.texts] == ["begins", "gather", "reduce"] * 2
    assert axes.get_xlabel() == "simulated time in us"


def test_a_rank_that_is_not_there_is_named(run: Replay) -> None:
    with pytest.raises(ValueError, match="between 0 and 1; got 2 for 'a'"):
        draw_simulated({"a": run}, rank=2)
