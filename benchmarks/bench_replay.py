"""The simulated clock: replaying a DDP step of 8 ranks, and this machine's roof against its libraries.

The step is that of a 10-layer transformer, traced on real ranks. The roof is what lab 01 draws; beside it the
best of numpy's and torch's matmul of several sizes, measured in turns.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import torch
import torch.distributed as dist

from course_lib import roofline
from course_lib.config import ModelConfig
from course_lib.cost.cluster import dgx_h100
from course_lib.model.batches import shard_batch, synthetic_batch
from course_lib.model.transformer import Transformer, cross_entropy
from course_lib.parallel.ddp import BucketedDDP
from course_lib.ranks import run_ranks
from course_lib.replay import replay

Row = tuple[str, float, str, str]

WORLD_SIZE = 8
ROUNDS = 7
SIZES = (512, 1024, 2048)
CONFIG = ModelConfig(
    vocab_size=512, model_dim=64, num_layers=10, num_heads=4, num_kv_heads=2, ffn_dim=176, max_seq_len=16
)


def step() -> None:
    """In a rank: one step of DDP."""
    batch = shard_batch(synthetic_batch(16, 16, CONFIG.vocab_size), dist.get_rank(), WORLD_SIZE)
    ddp = BucketedDDP(Transformer(CONFIG), 2**18)
    cross_entropy(ddp(batch.tokens), batch.targets).backward()
    ddp.sync_gradients()


def rows() -> list[Row]:
    """Give (name, value, unit, note), measured in one run."""
    traced = run_ranks(step, WORLD_SIZE, trace=True, quiet=True, timeout_s=120.0).trace
    num_events = sum(len(rank.events) for rank in traced)
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        replay(traced, dgx_h100())
        seconds.append(time.perf_counter() - start)
    replay_s = statistics.median(seconds)
    ours, best = _roofs()
    return [
        ("replay of a step", replay_s, "s", f"goal: at most 0.5; {WORLD_SIZE} ranks, 10 layers"),
        ("events", num_events, "", "of all ranks together"),
        ("events per second", num_events / replay_s, "", "goal: at least 100,000"),
        ("this machine's roof, float32", ours / 1e9, "GFLOP/s", "as lab 01 draws it"),
        ("the best of numpy's and torch's matmul", best / 1e9, "GFLOP/s", f"square, {SIZES}"),
        ("roof / best", ours / best, "x", "goal: 0.85 to 1.15"),
    ]


def _roofs() -> tuple[float, float]:
    """FLOP/s of the roof, and the most that a matmul reached; three turns of each."""
    ours, best = 0.0, 0.0
    for _ in range(3):
        ours = max(ours, *roofline.matmul_flops_per_s().values())
        for n in SIZES:
            a = torch.rand(n, n)
            x = np.asarray(a)
            for call in (lambda a=a: a @ a, lambda x=x: x @ x):
                for _ in range(8):
                    start = time.perf_counter()
                    call()
                    best = max(best, 2 * n**3 / (time.perf_counter() - start))
    return ours, best
