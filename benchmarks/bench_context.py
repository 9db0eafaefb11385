"""Attention over a shared sequence: ring, zigzag, all-gather and Ulysses against one process's SDPA.

The same tokens, forward and backward, float32. One process has both cores, each of four ranks one thread, so
seconds compare what two cores do. Peak memory is of live tensors, the inputs' gradients among them; for the
longest sequence it is what the process itself grew by. Simulated seconds are the same program's on four H100
behind NVSwitch in bf16, where products alone take time: eager PyTorch merges blocks in kernels of their own,
production inside the attention's.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from course_lib.cost.cluster import uniform
from course_lib.model.attention import sdpa
from course_lib.parallel.context import AllGatherAttention, ContextParallel, RingAttention, UlyssesAttention
from course_lib.ranks import run_ranks
from course_lib.replay import Efficiency, replay

Row = tuple[str, float, str, str]

NUM_RANKS, HEADS, KV_HEADS, HEAD_DIM = 4, 8, 1, 64
SEQ_LEN, ROUNDS = 4096, 5
LONG, LONG_HEADS = 32_768, 8
CORES = 2
MADE: dict[str, Callable[[], ContextParallel]] = {
    "ring, contiguous": lambda: RingAttention(dist.group.WORLD, layout="contiguous"),
    "ring, zigzag": lambda: RingAttention(dist.group.WORLD, layout="zigzag"),
    "all-gather, zigzag": lambda: AllGatherAttention(dist.group.WORLD, layout="zigzag"),
    "Ulysses": lambda: UlyssesAttention(dist.group.WORLD),
}


def local_inputs(tokens: int) -> list[torch.Tensor]:
    return [torch.randn(1, n, tokens, HEAD_DIM, requires_grad=True) for n in (HEADS, KV_HEADS, KV_HEADS)]


def step_s(attend: Callable[..., torch.Tensor], inputs: list[torch.Tensor], positions: torch.Tensor) -> float:
    start_s = time.perf_counter()
    attend(*inputs, positions).sum().backward()
    return time.perf_counter() - start_s


def parallel_step(name: str, rounds: int) -> float:
    """Median seconds of a rank's forward and backward."""
    torch.set_num_threads(1)
    core, inputs = MADE[name](), local_inputs(SEQ_LEN // NUM_RANKS)
    positions = core.positions(SEQ_LEN)
    seconds = []
    for _ in range(rounds):
        dist.barrier()
        seconds.append(step_s(core, inputs, positions))
    return statistics.median(seconds)


def one_process_step(rounds: int) -> float:
    torch.set_num_threads(CORES)
    inputs = local_inputs(SEQ_LEN)
    return statistics.median(step_s(sdpa, inputs, torch.arange(SEQ_LEN)) for _ in range(rounds))


def long_attention(seq_len: int) -> tuple[float, float]:
    """Seconds of a forward, and the bytes that the process grew by."""
    torch.set_num_threads(1)
    core = RingAttention(dist.group.WORLD)
    shape = (1, LONG_HEADS, seq_len // NUM_RANKS, HEAD_DIM)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.perf_counter()
    core(*(torch.randn(shape) for _ in range(3)), core.positions(seq_len))
    return time.perf_counter() - start_s, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def rows() -> list[Row]:
    """Give (name, value, unit, note)."""
    where = f"{SEQ_LEN:,} tokens, {HEADS} query and {KV_HEADS} kv heads of {HEAD_DIM}, causal"
    alone_s = run_ranks(one_process_step, 1, ROUNDS, monitor=False, timeout_s=600)[0]
    alone_bytes = run_ranks(one_process_step, 1, 1, trace=True).trace.ranks[0].peak_bytes()
    found: list[Row] = [
        ("one process, SDPA", alone_s, "s", f"{where}; {CORES} threads"),
        ("one process, SDPA, peak", alone_bytes / 1e6, "MB", "live tensors"),
    ]
    simulated: dict[str, float] = {}
    quick = Efficiency(matmul=1e-4, memory=1.0)  # and links as much slower: see the first lines
    cluster = uniform(NUM_RANKS, 0.0, 450e9 * quick.matmul)
    for name in MADE:
        seconds = statistics.fmean(
            run_ranks(parallel_step, NUM_RANKS, name, ROUNDS, monitor=False, timeout_s=600)
        )
        trace = run_ranks(parallel_step, NUM_RANKS, name, 1, trace=True).trace
        peak = max(rank.peak_bytes() for rank in trace.ranks)
        run = replay(trace, cluster, precision="bfloat16", efficiency=quick)
        simulated[name] = run.step_s * quick.matmul
        found += [
            (
                f"{name}, 4 ranks / one process",
                seconds / alone_s,
                "x",
                f"time; 4 ranks on {CORES} cores: {seconds:.2f} s",
            ),
            (
                f"{name}, one process / one rank",
                alone_bytes / peak,
                "x",
                f"peak memory; {peak / 1e6:.1f} MB per rank",
            ),
            (
                f"{name}, simulated",
                simulated[name] * 1e6,
                "us",
                f"hidden: {run.overlap_fraction:.0%} of communication",
            ),
        ]
    gain = simulated["ring, contiguous"] / simulated["ring, zigzag"]
    found.append(("contiguous / zigzag, simulated", gain, "x", "goal: at least 1.6"))
    long = run_ranks(long_attention, NUM_RANKS, LONG, monitor=False, timeout_s=600)
    scores_bytes = 4 * LONG_HEADS * LONG**2
    took = f"{LONG_HEADS} heads, forward, {max(seconds for seconds, _ in long):.1f} s"
    note = f"{took}; one process's scores would take {scores_bytes / 1e9:.1f} GB"
    found.append(
        (f"{LONG:,} tokens, zigzag ring: a rank grows by", max(b for _, b in long) / 1e6, "MB", note)
    )
    return found


if __name__ == "__main__":
    for row in rows():
        print(*row, sep=" | ")
