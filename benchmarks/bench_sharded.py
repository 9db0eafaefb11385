"""Measure steps of our FSDP and ZeRO-1 against torch's, interleaved on the same 4 gloo ranks, untraced.

A step is zero_grad, forward, backward, gradient synchronisation and AdamW. ZeRO-1 in torch is DDP (buckets as
views) with ZeroRedundancyOptimizer. FSDP units are the blocks and the rest on both sides. A step takes as
long as its slowest rank; a ratio is the median of the ratios within a round, whose order is shuffled.
"""

import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from paired import ratio
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from course_lib.config import ModelConfig
from course_lib.model.batches import Batch, shard_batch, synthetic_batch
from course_lib.model.transformer import Transformer, cross_entropy
from course_lib.parallel.fsdp import FSDP
from course_lib.parallel.zero import ZeroOptimizer
from course_lib.ranks import run_ranks

Row = tuple[str, float, str, str]
Step = Callable[[Batch], None]

WORLD_SIZE = 4
ROUNDS = 60
WARM_UP_ROUNDS = 4
BUCKET_MIB = 5
CONFIG = ModelConfig(
    vocab_size=2048, model_dim=256, num_layers=4, num_heads=8, num_kv_heads=4, ffn_dim=704, max_seq_len=32
)


def step_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Return one training step."""

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        cross_entropy(model(batch.tokens), batch.targets).backward()
        optimizer.step()

    return step


def our_fsdp() -> Step:
    model = Transformer(CONFIG)
    sharded = FSDP(model, model.blocks)
    return step_of(sharded, torch.optim.AdamW(sharded.parameters()))


def torch_fsdp() -> Step:
    model = Transformer(CONFIG)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    return step_of(model, torch.optim.AdamW(model.parameters()))


def our_zero(stage: int) -> Step:
    model = Transformer(CONFIG)
    return step_of(
        model,
        ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage=stage, bucket_bytes=BUCKET_MIB * 2**20),
    )


def torch_zero() -> Step:
    model = Transformer(CONFIG)
    ddp = DistributedDataParallel(model, bucket_cap_mb=BUCKET_MIB, gradient_as_bucket_view=True)
    return step_of(ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW))


CONTENDERS: dict[str, Callable[[], Step]] = {
    "our FSDP": our_fsdp,
    "torch FSDP": torch_fsdp,
    "our ZeRO-1": lambda: our_zero(1),
    "our ZeRO-2": lambda: our_zero(2),
    "torch ZeRO-1": torch_zero,
}


def measure(rounds: int) -> dict[str, list[float]]:
    """In a rank: seconds of every step of all contenders, those of the slowest rank."""
    batch = shard_batch(synthetic_batch(8, 32, CONFIG.vocab_size), dist.get_rank(), WORLD_SIZE)
    steps = {name: make() for name, make in CONTENDERS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    orders = random.Random(0)  # equal on all ranks
    for index in range(WARM_UP_ROUNDS + rounds):
        for name in orders.sample(sorted(steps), len(steps)):
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
    seconds = run_ranks(measure, WORLD_SIZE, rounds, monitor=False, trace=False, timeout_s=600.0)[0]
    setting = f"{WORLD_SIZE} gloo ranks, {CONFIG.num_params / 1e6:.1f} M float32 parameters, AdamW"
    times = [(f"step, {name}", 1e3 * statistics.median(seconds[name]), "ms", setting) for name in seconds]
    fsdp, fsdp_sure = ratio(seconds["our FSDP"], seconds["torch FSDP"])
    zero, zero_sure = ratio(seconds["our ZeRO-1"], seconds["torch ZeRO-1"])
    stages, stages_sure = ratio(seconds["our ZeRO-2"], seconds["our ZeRO-1"])
    return [
        *times,
        ("FSDP step, ours / torch fully_shard", fsdp, "x", f"goal: at most 1.0; {fsdp_sure}"),
        (
            "ZeRO-1 step, ours / torch ZeroRedundancyOptimizer",
            zero,
            "x",
            f"goal: at most 1.0; {zero_sure}",
        ),
        ("ZeRO-2 step / ZeRO-1 step, ours", stages, "x", stages_sure),
    ]


if __name__ == "__main__":
    for name, value, unit, note in rows():
        print(f"{name:50} {value:8.2f} {unit:3} {note}")
