"""Race contenders on the same ranks, and give ratios of times taken in pairs, and how sure they are."""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

Times = dict[str, list[float]]  # a contender's seconds, one a round


def race(steps: Mapping[str, Callable[[], object]], rounds: int, warm_up_rounds: int) -> tuple[Times, Times]:
    """In a rank of an untraced world: time every step in every round, in an order that each round shuffles.

    Returns seconds by the clock, those of the slowest rank, and of CPU: all threads, the mean over ranks,
    which is what other work on the machine changes least. All ranks get the same. Shuffled, so that nobody
    always follows the same other one.
    """
    by_clock: Times = {name: [] for name in steps}
    by_cpu: Times = {name: [] for name in steps}
    orders = random.Random(0)  # equal on all ranks
    for index in range(warm_up_rounds + rounds):
        for name in orders.sample(sorted(steps), len(steps)):
            dist.barrier()
            start, cpu_start = time.perf_counter(), time.process_time()
            steps[name]()
            cpu = torch.tensor([time.process_time() - cpu_start], dtype=torch.float64)
            taken = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
            dist.all_reduce(taken, op=dist.ReduceOp.MAX)
            dist.all_reduce(cpu)
            if index >= warm_up_rounds:
                by_clock[name].append(taken.item())
                by_cpu[name].append(cpu.item() / dist.get_world_size())
    return by_clock, by_cpu


def ratio(above: Sequence[float], below: Sequence[float]) -> tuple[float, str]:
    """Give the median of above / below over rounds, and "95% between a and b" for where that median lies.

    The bounds are order statistics: they assume nothing about how the ratios are distributed.
    """
    ratios = sorted(a / b for a, b in zip(above, below, strict=True))
    n = len(ratios)
    reach = 1.96 * math.sqrt(n) / 2
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach))
    return statistics.median(ratios), f"{n} rounds, 95% between {ratios[low]:.3f} and {ratios[high]:.3f}"
