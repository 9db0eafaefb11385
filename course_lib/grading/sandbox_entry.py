"""Entry of the judge's sandbox: `python -m course_lib.grading.sandbox_entry IN OUT`, two file descriptors.

The fork server closes both descriptors before it forks a rank: no rank can write to the judge.
"""

from __future__ import annotations

import importlib
import sys

from course_lib.grading.own_server import fork_server
from course_lib.ranks.forkserver import preload


def main(requests: int, answers: int) -> None:
    """Load torch, fork the server of ranks, then serve."""
    preload("course_lib.grading.sandbox_worker")  # or each rank would import it: a sixth of its work
    fork_server()
    importlib.import_module("course_lib.grading.sandbox_worker").serve(requests, answers)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
