"""Entry of the judge's sandbox: `python -m course_lib.grading.sandboxed IN OUT`, two file descriptors.

Loading torch is most of what a sandbox costs, so it is done once: the server that ranks are forked from is a
fork of this process, where multiprocessing would start another Python.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

from course_lib.comm.start import PRELOADED


def fork_server(_path: Any, _arguments: Any, keep: Sequence[int]) -> int:
    """Fork the server; in place of `multiprocessing.util.spawnv_passfds`.

    It keeps its own two descriptors only: what the servant says to the judge, no rank may say.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        bounds = [2, *sorted(keep), os.sysconf("SC_OPEN_MAX")]
        for low, high in itertools.pairwise(bounds):
            os.closerange(low + 1, high)
        listener, alive = keep
        serve_ranks: Any = forkserver.main  # typeshed has other parameters
        serve_ranks(listener, alive, [])
    finally:
        os._exit(0)


def main(requests: int, answers: int) -> None:
    """Load torch, fork the server of ranks, then serve."""
    for name in PRELOADED:
        importlib.import_module(name)
    resource_tracker.ensure_running()  # started in the usual way: it is asked for first
    start: Any = util  # forkserver starts its server by a function of this module
    usual, start.spawnv_passfds = start.spawnv_passfds, fork_server
    try:
        forkserver.ensure_running()
    finally:
        start.spawnv_passfds = usual
    importlib.import_module("course_lib.grading.servant").serve(requests, answers)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
