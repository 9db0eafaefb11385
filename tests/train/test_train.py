"""The loop: a number of ranks or micro-batches changes nothing, a loss falls, every step is measured."""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from course_lib.train import TrainOptions, TrainResult, train
from course_lib.train.__main__ import main, summary
from course_lib.train.meter import learning_rate_at
from course_lib.train.progress import bar_of_steps, write_line

BASE = TrainOptions(
    model="tiny",
    steps=4,
    batch_size=4,
    seq_len=16,
    warmup_steps=2,
    learning_rate=3e-3,
    threads=1,
    peak="1 TFLOP/s",
)


def run(**changes: Any) -> TrainResult:
    return train(replace(BASE, **changes), progress=False)


@pytest.fixture(scope="module")
def alone() -> TrainResult:
    return run()


@pytest.mark.parametrize(("parallel", "ranks"), [("ddp", 2), ("zero1", 2), ("zero2", 2), ("fsdp", 2)])
def test_ranks_train_as_one_process(alone: TrainResult, parallel: str, ranks: int) -> None:
    shared = run(parallel=parallel, ranks=ranks, microbatch_size=2)
    assert shared.losses == pytest.approx(alone.losses, rel=1e-4)
    norms = [[step["grad_norm"] for step in result.steps] for result in (shared, alone)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


@pytest.mark.parametrize(
    "degrees",
    [{"tp": 2, "pp": 2, "microbatch_size": 1}, {"cp": 2, "dp_shard": 2, "recompute": "full"}],
    ids=str,
)
def test_a_run_in_four_dimensions_trains_as_one_process(alone: TrainResult, degrees: dict[str, Any]) -> None:
    shared = run(**degrees)
    assert shared.losses == pytest.approx(alone.losses, rel=1e-4)
    norms = [[step["grad_norm"] for step in result.steps] for result in (shared, alone)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-3)


@pytest.mark.parametrize(
    "changes", [{"microbatch_size": 1}, {"recompute": "full"}, {"recompute": "selective"}]
)
def test_accumulation_and_recomputation_change_no_loss(alone: TrainResult, changes: dict[str, Any]) -> None:
    assert run(**changes).losses == pytest.approx(alone.losses, rel=1e-4)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_accumulation_on_ranks(alone: TrainResult, parallel: str) -> None:
    assert run(parallel=parallel, ranks=2, microbatch_size=1).losses == pytest.approx(alone.losses, rel=1e-4)


def test_mixed_precision_stays_near(alone: TrainResult) -> None:
    assert run(precision="bf16").losses == pytest.approx(alone.losses, rel=0.01)
    assert run(precision="bf16", parallel="fsdp", ranks=2).losses == pytest.approx(alone.losses, rel=0.01)


def test_clipping_holds_the_norm_and_reports_the_one_before(alone: TrainResult) -> None:
    clipped = run(clip=0.01)
    assert clipped.steps[0]["grad_norm"] == pytest.approx(alone.steps[0]["grad_norm"])
    assert clipped.steps[0]["grad_norm"] > 0.01
    assert clipped.losses[0] == alone.losses[0]
    assert clipped.losses[-1] != alone.losses[-1]


def test_a_loss_falls_on_text_and_on_synthetic_tokens() -> None:
    for data in ("corpus", "synthetic"):
        losses = run(data=data, steps=40, warmup_steps=4, batch_size=8).losses
        assert sum(losses[-5:]) < 0.75 * sum(losses[:5])


def test_rates_are_flops_over_time_and_peak() -> None:
    """A clock that ticks a second a look: 64 tokens per second."""
    ticks = itertools.count()
    result = train(BASE, progress=False, clock=lambda: float(next(ticks)))
    step = result.steps[-1]
    per_token = 6 * (BASE.config.num_params - 256 * 64 - 5 * 64) + 12 * 2 * 64 * 16
    assert step["step_time_s"] == 1
    assert step["tokens_per_s"] == 64
    assert step["mfu"] == pytest.approx(64 * per_token / 1e12)
    assert step["hfu"] == pytest.approx(64 * (per_token + 2 * 2 * 64 * 16) / 1e12)
    assert "given" in str(result.peak)


def test_learning_rate_warms_up_and_falls_to_a_tenth() -> None:
    rates = [learning_rate_at(step, peak=1.0, warmup_steps=4, num_steps=24) for step in range(24)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))
    assert rates[-1] == pytest.approx(0.1)


def test_the_command_writes_lines_and_a_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", "tiny", "--steps", "3", "--batch-size", "2", "--seq-len", "8", "--peak"]
    assert main([*words, "2 TFLOP/s", "--out", str(tmp_path)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert {"loss", "learning_rate", "grad_norm", "tokens_per_s", "mfu", "hfu"} <= set(lines[0])
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "2 TFLOP/s (given)" in capsys.readouterr().out


def test_the_bar_of_ranks_is_the_callers(capsys: pytest.CaptureFixture[str]) -> None:
    """What ranks print comes at their end, on stdout; the bar does neither."""
    train(replace(BASE, parallel="ddp", ranks=2), progress=True)
    found = capsys.readouterr()
    assert "4/4" in found.err
    assert "4/4" not in found.out


def test_the_bar_shows_a_step_while_the_next_one_runs(capsys: pytest.CaptureFixture[str]) -> None:
    seen = ""
    with bar_of_steps(2) as path:
        write_line(path, {"loss": 1.0, "mfu": 0.5})
        while "1/2" not in seen:  # the suite's time limit ends it
            seen += capsys.readouterr().err
            time.sleep(0.05)
    assert "loss=1.000" in seen


def test_the_summary_names_the_peak(alone: TrainResult) -> None:
    assert "peak of one device: 1 TFLOP/s (given)" in summary(alone)
    assert "MFU" in repr(alone)
