"""Measure a step of our BucketedDDP against torch's DDP, interleaved on the same 4 gloo ranks, untraced.

A step is zero_grad, forward, backward and gradient synchronisation; the optimizer, equal for all, is left
out. A step takes as long as its slowest rank. Each round shuffles the order, so that nobody always follows
the same other one; a ratio is the median of the ratios within a round.
"""

import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from paired import ratio
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.config import ModelConfig
from course_lib.model.batches import Batch, shard_batch, synthetic_batch
from course_lib.model.transformer import Transformer, cross_entropy
from course_lib.parallel.ddp import BucketedDDP, NaiveDDP
from course_lib.ranks import run_ranks

Row = tuple[str, float, str, str]

WORLD_SIZE = 4
ROUNDS = 120
WARM_UP_ROUNDS = 4  # torch rebuilds its buckets after the first step
TORCH_BUCKET_MIB = 4  # torch closes a bucket once it holds this much, we before it would hold more:
OUR_BUCKET_MIB = 5  # with these limits both send 4 buckets
CONFIG = ModelConfig(
    vocab_size=2048, model_dim=256, num_layers=4, num_heads=8, num_kv_heads=4, ffn_dim=704, max_seq_len=32
)
FAST = ("ours", "torch", "torch as view")
SLOW = ("ours", "naive")


def torch_ddp(model: nn.Module, as_view: bool) -> Callable[[Batch], None]:
    ddp = DistributedDataParallel(model, bucket_cap_mb=TORCH_BUCKET_MIB, gradient_as_bucket_view=as_view)

    def step(batch: Batch) -> None:
        ddp.zero_grad()
        cross_entropy(ddp(batch.tokens), batch.targets).backward()

    return step


def our_ddp(ddp: BucketedDDP | NaiveDDP) -> Callable[[Batch], None]:
    def step(batch: Batch) -> None:
        ddp.zero_grad()
        cross_entropy(ddp(batch.tokens), batch.targets).backward()
        ddp.sync_gradients()

    return step


CONTENDERS: dict[str, Callable[[], Callable[[Batch], None]]] = {
    "ours": lambda: our_ddp(BucketedDDP(Transformer(CONFIG), OUR_BUCKET_MIB * 2**20)),
    "torch": lambda: torch_ddp(Transformer(CONFIG), as_view=False),
    "torch as view": lambda: torch_ddp(Transformer(CONFIG), as_view=True),
    "naive": lambda: our_ddp(NaiveDDP(Transformer(CONFIG))),
}


def measure(rounds: int, names: tuple[str, ...]) -> dict[str, list[float]]:
    """In a rank: seconds of every step of the named contenders, those of the slowest rank."""
    batch = shard_batch(synthetic_batch(8, 32, CONFIG.vocab_size), dist.get_rank(), WORLD_SIZE)
    steps = {name: CONTENDERS[name]() for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    orders = random.Random(0)  # equal on all ranks
    for index in range(WARM_UP_ROUNDS + rounds):
        for name in orders.sample(names, len(names)):
            dist.barrier()
            start = time.perf_counter()
            steps[name](batch)
            taken = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            if index >= WARM_UP_ROUNDS:
                seconds[name].append(taken.item())
    return seconds


def rows(rounds: int = ROUNDS) -> list[Row]:
    """Give (name, value, unit, note), measured in one run."""
    seconds = run_ranks(measure, WORLD_SIZE, rounds, FAST, monitor=False, trace=False, timeout_s=300.0)[0]
    slow = run_ranks(measure, WORLD_SIZE, rounds // 6, SLOW, monitor=False, trace=False, timeout_s=300.0)[0]
    setting = f"{WORLD_SIZE} gloo ranks, {CONFIG.num_params / 1e6:.1f} M float32 parameters, 4 buckets each"
    ours, sure = ratio(seconds["ours"], seconds["torch"])
    ours_view, view_sure = ratio(seconds["ours"], seconds["torch as view"])
    saved, _ = ratio(slow["naive"], slow["ours"])
    return [
        ("DDP step, ours", 1e3 * statistics.median(seconds["ours"]), "ms", setting),
        ("DDP step, torch", 1e3 * statistics.median(seconds["torch"]), "ms", setting),
        ("DDP step, ours / torch", ours, "x", f"goal: at most 1.0; {sure}"),
        ("DDP step, ours / torch as view", ours_view, "x", f"gradient_as_bucket_view=True; {view_sure}"),
        ("DDP step, naive / ours", saved, "x", "what buckets and overlap save"),
    ]


if __name__ == "__main__":
    for name, value, unit, note in rows():
        print(f"{name:32} {value:8.2f} {unit:3} {note}")
