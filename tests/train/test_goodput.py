"""Goodput: published numbers, simulation against Daly's exact form, the best interval against a search."""

import math

import numpy as np
import pytest

from course_lib.train.goodput import (
    goodput,
    simulate_run,
    young_interval_s,
)

DAY_S = 86_400.0
HORIZON_S = 54 * DAY_S
MTBF_S = HORIZON_S / 419  # interruptions of Llama 3 405B, arXiv:2407.21783, table 5
CASES = [(2.0, 300.0), (10.0, 300.0), (60.0, 600.0), (300.0, 900.0)]  # save, restart


@pytest.mark.parametrize(("save_s", "restart_s"), CASES)
def test_simulated_runs_have_the_exact_goodput(save_s: float, restart_s: float) -> None:
    generator = np.random.default_rng(0)
    for factor in (0.5, 1.0, 2.0):
        interval_s = factor * young_interval_s(MTBF_S, save_s)
        runs = [simulate_run(interval_s, MTBF_S, save_s, restart_s, HORIZON_S, generator) for _ in range(200)]
        exact = goodput(interval_s, MTBF_S, save_s, restart_s)
        assert np.mean([run.goodput for run in runs]) == pytest.approx(exact, rel=0.005)
        for run in runs:  # every second is somewhere
            total = run.useful_s + run.saving_s + run.restarting_s + run.lost_s
            assert total == pytest.approx(HORIZON_S)
        assert np.mean([run.num_failures for run in runs]) == pytest.approx(419, rel=0.02)


def test_without_failures_only_saves_cost() -> None:
    run = simulate_run(90.0, 1e12, 10.0, 5.0, 1000.0, np.random.default_rng(0))
    assert (run.num_failures, run.goodput) == (0, 0.9)


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match="the interval between saves"):
        goodput(0.0, 1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="a restart must be 0 or more; got -1"):
        goodput(1.0, 1.0, 1.0, -1)
    with pytest.raises(ValueError, match="horizon"):
        simulate_run(1.0, 1.0, 1.0, 1.0, math.nan, np.random.default_rng(0))
