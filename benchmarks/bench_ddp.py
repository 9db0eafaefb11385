"""Measure a step of our BucketedDDP against torch's DDP, interleaved on the same 4 gloo ranks, untraced.

A step is zero_grad, forward, backward and gradient synchronisation; the optimizer, equal for all, is left
out. A step takes as long as its slowest rank; a ratio is the median of the ratios within a round, whose order
is shuffled. CPU time (all threads, mean over ranks) is what other work on the machine changes least.
"""

import statistics
from collections.abc import Callable
from functools import partial

import torch.distributed as dist
from paired import Times, race, ratio
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
OUR_BUCKET_BYTES = int(4.3 * 2**20)  # with these limits both send 4 buckets of the same sizes
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
    "ours": lambda: our_ddp(BucketedDDP(Transformer(CONFIG), OUR_BUCKET_BYTES)),
    "torch": lambda: torch_ddp(Transformer(CONFIG), as_view=False),
    "torch as view": lambda: torch_ddp(Transformer(CONFIG), as_view=True),
    "naive": lambda: our_ddp(NaiveDDP(Transformer(CONFIG))),
}


def measure(rounds: int, names: tuple[str, ...]) -> tuple[Times, Times]:
    """In a rank: seconds of every step of the named contenders, by the clock and of CPU."""
    batch = shard_batch(synthetic_batch(8, 32, CONFIG.vocab_size), dist.get_rank(), WORLD_SIZE)
    steps = {name: partial(CONTENDERS[name](), batch) for name in names}
    return race(steps, rounds, WARM_UP_ROUNDS)


def rows(rounds: int = ROUNDS) -> list[Row]:
    """Give (name, value, unit, note), measured in one run."""
    untraced = {"monitor": False, "trace": False, "timeout_s": 300.0}
    seconds, cpu_seconds = run_ranks(measure, WORLD_SIZE, rounds, FAST, **untraced)[0]
    slow, _ = run_ranks(measure, WORLD_SIZE, rounds // 6, SLOW, **untraced)[0]
    setting = f"{WORLD_SIZE} gloo ranks, {CONFIG.num_params / 1e6:.1f} M float32 parameters, 4 buckets each"
    saved, _ = ratio(slow["naive"], slow["ours"])
    return [
        ("DDP step, ours", 1e3 * statistics.median(seconds["ours"]), "ms", setting),
        ("DDP step, torch", 1e3 * statistics.median(seconds["torch"]), "ms", setting),
        *compared("torch", seconds, cpu_seconds, "gradients copied back"),
        *compared("torch as view", seconds, cpu_seconds, "gradient_as_bucket_view=True; goal: at most 1.0"),
        ("DDP step, naive / ours", saved, "x", "what buckets and overlap save"),
    ]


def compared(other: str, seconds: Times, cpu_seconds: Times, note: str) -> list[Row]:
    """Give the ratio of our step to another, by the clock and of CPU time."""
    found = []
    for times, how in ((seconds, ""), (cpu_seconds, ", CPU time")):
        value, sure = ratio(times["ours"], times[other])
        found.append((f"DDP step, ours / {other}{how}", value, "x", f"{note}; {sure}"))
    return found


if __name__ == "__main__":
    for name, value, unit, note in rows():
        print(f"{name:32} {value:8.2f} {unit:3} {note}")
