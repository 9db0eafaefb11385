"""Measure a step of our pipeline against torch's 1F1B, interleaved on the same 4 gloo ranks, untraced.

A step is zero_grad and all forwards and backwards of 8 micro-batches; it takes as long as its slowest rank.
The order of the contenders is shuffled in each round; a ratio is the median of the ratios within a round.
The simulator times 1F1B's list for 64 stages and 512 micro-batches, from lists of actions to the bubble.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from paired import Times, race, ratio
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from course_lib.config import ModelConfig
from course_lib.model.batches import Batch, synthetic_batch
from course_lib.model.stages import Stage, microbatches, transformer_stages
from course_lib.model.transformer import Transformer, cross_entropy
from course_lib.parallel.pipeline.engine import Pipeline
from course_lib.ranks import run_ranks
from course_lib.schedules.actions import Schedule
from course_lib.schedules.generators import one_f_one_b, zb_h1
from course_lib.schedules.simulate import StageCosts, simulate

Row = tuple[str, float, str, str]

RANKS, MICROBATCHES, SAMPLES, SEQ = 4, 8, 32, 64
ROUNDS, WARM_UP_ROUNDS = 120, 3
CONFIG = ModelConfig(
    vocab_size=512, model_dim=128, num_layers=8, num_heads=4, num_kv_heads=2, ffn_dim=352, max_seq_len=SEQ
)
SIMULATED_RANKS, SIMULATED_MICROBATCHES = 64, 512


def own_stage() -> Stage:
    return transformer_stages(Transformer(CONFIG), RANKS)[dist.get_rank()]


def ours(schedule: Schedule, batch: Batch) -> Callable[[], object]:
    rank, stage = dist.get_rank(), own_stage()
    shape = (SAMPLES // MICROBATCHES, SEQ, CONFIG.model_dim)
    pipeline = Pipeline({rank: stage}, schedule, activation_shape=shape)
    parts = microbatches(batch, MICROBATCHES)
    inputs, targets = [part.tokens for part in parts], [part.targets for part in parts]

    def share(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return cross_entropy(out, target) / MICROBATCHES

    def step() -> object:
        stage.zero_grad()
        return pipeline.step(inputs, targets, share)

    return step


def torchs(batch: Batch) -> Callable[[], object]:
    rank, module = dist.get_rank(), own_stage()
    stage = PipelineStage(module, rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=cross_entropy)
    first, last = rank == 0, rank == RANKS - 1

    def step() -> object:
        module.zero_grad()
        given = {"target": batch.targets} if last else {}
        return schedule.step(*([batch.tokens] if first else []), **given, return_outputs=False)

    return step


def measure(rounds: int) -> Times:
    """In a rank: seconds of every step of each contender, those of the slowest rank."""
    batch = synthetic_batch(SAMPLES, SEQ, CONFIG.vocab_size)
    steps: dict[str, Callable[[], Any]] = {
        "ours": ours(one_f_one_b(RANKS, MICROBATCHES), batch),
        "torch": torchs(batch),
        "zb_h1": ours(zb_h1(RANKS, MICROBATCHES), batch),
    }
    return race(steps, rounds, WARM_UP_ROUNDS)[0]


def simulated_actions_per_s(rounds: int = 15) -> float:
    """Time the simulator on fresh lists, so that nothing is remembered; the best of some rounds."""
    rates = []
    for _ in range(rounds):
        schedule = one_f_one_b(SIMULATED_RANKS, SIMULATED_MICROBATCHES)
        start = time.perf_counter()
        float(simulate(schedule, StageCosts(forward_s=1.0, input_s=1.0, weight_s=1.0)).bubble)
        rates.append(schedule.num_actions / (time.perf_counter() - start))
    return max(rates)


def rows(rounds: int = ROUNDS) -> list[Row]:
    """Give (name, value, unit, note), measured in one run."""
    seconds = run_ranks(measure, RANKS, rounds, monitor=False, trace=False, timeout_s=300.0)[0]
    setting = f"{RANKS} gloo ranks, {MICROBATCHES} micro-batches, {CONFIG.num_params / 1e6:.1f} M parameters"
    against, sure = ratio(seconds["ours"], seconds["torch"])
    split, split_sure = ratio(seconds["zb_h1"], seconds["ours"])
    simulated = f"1F1B, {SIMULATED_RANKS} stages, {SIMULATED_MICROBATCHES} micro-batches; goal: 1 M or more"
    return [
        ("1F1B step, ours", 1e3 * statistics.median(seconds["ours"]), "ms", setting),
        ("1F1B step, torch", 1e3 * statistics.median(seconds["torch"]), "ms", setting),
        ("1F1B step, ours / torch", against, "x", f"goal: at most 1.0; {sure}"),
        ("ZB-H1 step / 1F1B step", split, "x", f"more ranks than cores: no idle core to fill; {split_sure}"),
        ("schedule simulator", simulated_actions_per_s() / 1e6, "M actions/s", simulated),
    ]


if __name__ == "__main__":
    for name, value, unit, note in rows():
        print(f"{name:32} {value:8.2f} {unit:3} {note}")
