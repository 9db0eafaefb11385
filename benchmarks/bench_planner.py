"""The planner: layouts priced per second, the search for Llama 3 405B on 16,384 GPUs, its import.

Seconds of CPU time: what one idle core would take, at most.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np

from course_lib.cost.models import model
from course_lib.planner import Request, plan
from course_lib.planner.named import cluster_named
from course_lib.planner.search import price

Row = tuple[str, float, str, str]

ROUNDS, PRICED = 5, 100_000
IMPORT = """import sys, time
import course_lib.planner
print(time.process_time())
assert "torch" not in sys.modules"""


def rows() -> list[Row]:
    """Give (name, value, unit, note), measured in one run."""
    request = Request(
        config=model("llama3-405b"),
        cluster=cluster_named("meta", 16_384),
        num_gpus=16_384,
        seq_len=8192,
        tokens_per_step=2**24,
    )
    found = plan(request)
    table = np.resize(found.table, (PRICED, found.table.shape[1]))
    price_s = cpu_s(lambda: price(request, table))
    search_s = cpu_s(lambda: plan(request))
    considered = len(found.table) + sum(found.left_out.values())
    return [
        ("layouts priced per second", PRICED / price_s, "", f"goal: at least 100,000; {PRICED:,} at once"),
        ("search, 405B on 16,384 GPUs", search_s, "s", f"goal: at most 2; {considered:,} layouts considered"),
        (
            "import without torch",
            import_s(),
            "s",
            "goal: at most 0.5; a new interpreter's CPU time, all of it",
        ),
    ]


def cpu_s(run: Callable[[], object]) -> float:
    """Return the median CPU seconds of some runs."""
    seconds = []
    for _ in range(ROUNDS):
        begin_s = time.process_time()
        run()
        seconds.append(time.process_time() - begin_s)
    return statistics.median(seconds)


def import_s() -> float:
    """Return the median CPU seconds of new interpreters that import the planner."""
    command = [sys.executable, "-c", IMPORT]
    found = [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(ROUNDS)
    ]
    return statistics.median(found)
