"""Starting ranks: run_ranks against torch.multiprocessing.spawn.

The same work, one all_reduce of a number on gloo, from the call to every rank's value in the parent; both
meet through a file. `first call` is in a new interpreter that has already imported torch; in a notebook the
set-up cell came before that import, and the fork server has been loading since.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from course_lib.ranks import run_ranks

Row = tuple[str, float, str, str]

WORLD_SIZES = (2, 4, 8)
FIRST_CALL = """
import time
{setup}
import torch, torch.distributed
from course_lib.ranks import run_ranks
from bench_launch import add_ranks
start = time.perf_counter()
run_ranks(add_ranks, {n}, quiet=True)
print(time.perf_counter() - start)
"""
SETUP_CELL = (
    "from course_grader import notebook; from course_lib import __version__; notebook.start(__version__)"
)


def add_ranks() -> float:
    """Sum the ranks' numbers with one all_reduce."""
    total = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(total)
    return float(total)


def _spawned(rank: int, world_size: int, folder: str, results: Any) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
    results.put((rank, add_ranks()))
    dist.barrier()
    dist.destroy_process_group()


def by_spawn(world_size: int) -> None:
    """Do the work as a PyTorch tutorial does."""
    with tempfile.TemporaryDirectory() as folder:
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(_spawned, args=(world_size, folder, results), nprocs=world_size)
        values = dict(results.get() for _ in range(world_size))
    assert set(values.values()) == {sum(range(world_size))}


def by_run_ranks(world_size: int) -> None:
    """Do the work as the course does."""
    assert set(run_ranks(add_ranks, world_size, quiet=True)) == {sum(range(world_size))}


def median_s(work: Callable[[], None], repeats: int) -> float:
    """Return the median seconds of `repeats` calls."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def first_call_s(world_size: int, setup: str = "") -> float:
    """Return the seconds of the first run_ranks of an interpreter that began with `setup`."""
    code = FIRST_CALL.format(n=world_size, setup=setup)
    here = Path(__file__).resolve().parent
    done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def rows() -> list[Row]:
    """Give (name, value, unit, note) at each world size."""
    torch_s = median_s(lambda: subprocess.run([sys.executable, "-c", "import torch"], check=True), 3)
    scale = ("a new interpreter that imports torch", torch_s, "s", "for scale; median of 3")
    return [scale, *(row for world_size in WORLD_SIZES for row in _at(world_size))]


def _at(world_size: int) -> list[Row]:
    first_s, prepared_s = first_call_s(world_size), first_call_s(world_size, SETUP_CELL)
    by_run_ranks(world_size)
    ours_s = median_s(lambda: by_run_ranks(world_size), 9)
    theirs_s = median_s(lambda: by_spawn(world_size), 3)
    return [
        (f"run_ranks, {world_size} ranks, warm", ours_s, "s", "median of 9"),
        (f"run_ranks, {world_size} ranks, first call", first_s, "s", "goal: under 2, nothing else running"),
        (f"run_ranks, {world_size} ranks, first call in a notebook", prepared_s, "s", "set-up cell first"),
        (f"spawn, {world_size} ranks", theirs_s, "s", "median of 3"),
        (f"spawn / run_ranks, {world_size} ranks", theirs_s / ours_s, "x", "goal: at least 20"),
    ]
