"""Entry of the judge's sandbox: `python -m course_grader.inside.sandbox_entry IN OUT alone`.

IN and OUT are file descriptors; "alone", which only a sandbox makes possible, gives each
rank namespaces of its own.

The fork server closes both descriptors before it forks a rank: no rank can write to the judge.
"""

from __future__ import annotations

import importlib
import sys

from course_grader.inside.import_guard import look_around
from course_grader.inside.own_server import fork_server
from course_grader.inside.seclusion import prepare_server
from course_lib.ranks.forkserver import preload


def main(requests: int, answers: int, alone: bool) -> None:
    """Load torch, fork the server of ranks, then serve. `alone`: each rank in namespaces of its own."""
    preload("course_grader.inside.sandbox_worker")  # or each rank would import it: a sixth of its work

    def prepare() -> None:
        look_around()
        if alone:
            prepare_server()

    fork_server(prepare=prepare)
    importlib.import_module("course_grader.inside.sandbox_worker").serve(requests, answers)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["alone"])
