"""The course's collectives, made of sends and receives, against torch's on the same ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from course_lib.comm import collectives as ours
from course_lib.ranks import run_ranks

Row = tuple[str, float, str, str]

NUM_RANKS = 4
SIZES = (1_000, 1_000_000)  # float32 elements
ROUNDS = 15


def _race(numel: int) -> dict[str, list[float]]:
    """Median seconds of ours and torch's for each collective, measured in turns; this rank's view."""
    n = dist.get_world_size()
    x = torch.ones(numel)
    chunk, full = torch.empty(numel // n), torch.empty(numel)
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "broadcast": (lambda: ours.tree_broadcast_(x, 0), lambda: dist.broadcast(x, 0)),
        "all_reduce": (lambda: ours.ring_all_reduce_(x), lambda: dist.all_reduce(x)),
        "reduce_scatter": (
            lambda: ours.ring_reduce_scatter(x),
            lambda: dist.reduce_scatter(chunk, list(x.tensor_split(n))),
        ),
        "all_gather": (
            lambda: ours.ring_all_gather(chunk, numel),
            lambda: dist.all_gather(list(full.tensor_split(n)), chunk),
        ),
    }
    seconds: dict[str, list[float]] = {}
    for name, calls in pairs.items():
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for which, call in enumerate(calls):
                x.fill_(1.0)
                dist.barrier()
                start = time.perf_counter()
                call()
                times[which].append(time.perf_counter() - start)
        seconds[name] = [statistics.median(t) for t in times]
    return seconds


def rows() -> list[Row]:
    """Race every collective at both sizes."""
    found: list[Row] = []
    for numel in SIZES:
        mine = run_ranks(_race, NUM_RANKS, numel, monitor=False, quiet=True)[0]
        for name, (own_s, torch_s) in mine.items():
            note = f"{NUM_RANKS} gloo ranks, {4 * numel / 1e6:g} MB, ours {own_s * 1e3:.2f} ms"
            found.append((f"{name}, ours / torch", round(own_s / torch_s, 2), "x", note))
    return found


if __name__ == "__main__":
    for row in rows():
        print(*row, sep=" | ")
