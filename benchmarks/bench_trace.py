"""What watching costs: a training step bare, monitored, and traced.

The same DDP steps of a small transformer on 4 gloo ranks. Bare: neither hang monitor nor trace; monitored:
what run_ranks does by default; traced: every operation, call and byte is recorded as well. The three take
turns.
"""

from __future__ import annotations

import statistics
import time

import torch.distributed as dist

from course_lib.config import ModelConfig
from course_lib.model.batches import shard_batch, synthetic_batch
from course_lib.model.transformer import Transformer, cross_entropy
from course_lib.parallel.ddp import BucketedDDP
from course_lib.ranks import run_ranks

Row = tuple[str, float, str, str]

WORLD_SIZE = 4
ROUNDS = 5
STEPS = 6
CONFIG = ModelConfig(
    vocab_size=2048, model_dim=256, num_layers=4, num_heads=8, num_kv_heads=4, ffn_dim=704, max_seq_len=32
)
MODES = {
    "bare": {"monitor": False, "trace": False},
    "monitored": {"monitor": True, "trace": False},
    "traced": {"monitor": True, "trace": True},
}


def steps_s() -> float:
    """In a rank: median seconds of a step, without the first."""
    batch = shard_batch(synthetic_batch(8, 32, CONFIG.vocab_size), dist.get_rank(), WORLD_SIZE)
    ddp = BucketedDDP(Transformer(CONFIG), 4 * 2**20)
    seconds = []
    for _ in range(STEPS):
        start = time.perf_counter()
        ddp.zero_grad()
        cross_entropy(ddp(batch.tokens), batch.targets).backward()
        ddp.sync_gradients()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def rows() -> list[Row]:
    """Give (name, value, unit, note), measured in one run."""
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(ROUNDS):
        for mode, how in MODES.items():
            seconds[mode].append(max(run_ranks(steps_s, WORLD_SIZE, quiet=True, timeout_s=120.0, **how)))
    median = {mode: statistics.median(values) for mode, values in seconds.items()}
    times = [
        (f"DDP step, {mode}", 1e3 * value, "ms", f"{WORLD_SIZE} gloo ranks") for mode, value in median.items()
    ]
    return [
        *times,
        ("monitored / bare", median["monitored"] / median["bare"], "x", "the cost of never hanging"),
        ("traced / monitored", median["traced"] / median["monitored"], "x", "goal: at most 1.5"),
    ]
