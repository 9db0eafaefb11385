"""The course's collectives, made of sends and receives, against torch's on the same ranks, interleaved.

A call takes as long as its slowest rank; a ratio is the median of the ratios within a round, whose order is
shuffled. CPU time (all threads, mean over ranks) is what other work on the machine changes least.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
import torch.distributed as dist
from paired import Times, race, ratio

from course_lib.comm import collectives as ours
from course_lib.ranks import run_ranks

Row = tuple[str, float, str, str]

NUM_RANKS = 4
SIZES = (1_000, 1_000_000)  # float32 elements
ROUNDS = 60
WARM_UP_ROUNDS = 3
NAMES = ("broadcast", "all_reduce", "reduce_scatter", "all_gather")


def measure(numel: int, rounds: int) -> tuple[Times, Times]:
    """In a rank: seconds of each call by the clock, those of the slowest rank, and of CPU, the mean."""
    n = dist.get_world_size()
    x = torch.zeros(numel)  # sums of sums stay zero
    chunk, full = torch.empty(numel // n), torch.empty(numel)
    calls: dict[str, Callable[[], object]] = {
        "broadcast, ours": lambda: ours.tree_broadcast_(x, 0),
        "broadcast, torch": lambda: dist.broadcast(x, 0),
        "all_reduce, ours": lambda: ours.ring_all_reduce_(x),
        "all_reduce, torch": lambda: dist.all_reduce(x),
        "reduce_scatter, ours": lambda: ours.ring_reduce_scatter(x),
        "reduce_scatter, torch": lambda: dist.reduce_scatter(chunk, list(x.tensor_split(n))),
        "all_gather, ours": lambda: ours.ring_all_gather(chunk, numel),
        "all_gather, torch": lambda: dist.all_gather(list(full.tensor_split(n)), chunk),
    }
    return race(calls, rounds, WARM_UP_ROUNDS)


def rows(rounds: int = ROUNDS) -> list[Row]:
    """Race every collective at both sizes."""
    found: list[Row] = []
    for numel in SIZES:
        seconds, cpu = run_ranks(measure, NUM_RANKS, numel, rounds, monitor=False, trace=False, quiet=True)[0]
        for name in NAMES:
            mine, torchs = f"{name}, ours", f"{name}, torch"
            by_clock, sure = ratio(seconds[mine], seconds[torchs])
            by_cpu, _ = ratio(cpu[mine], cpu[torchs])
            ours_ms = 1e3 * statistics.median(seconds[mine])
            setting = f"{NUM_RANKS} gloo ranks, {4 * numel / 1e6:g} MB, ours {ours_ms:.2f} ms; {sure}"
            found.append((f"{name}, ours / torch", by_clock, "x", f"{setting}; CPU time {by_cpu:.2f} x"))
    return found


if __name__ == "__main__":
    for row in rows():
        print(*row, sep=" | ")
