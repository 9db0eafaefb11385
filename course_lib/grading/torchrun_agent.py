"""torchrun with forked workers: `python -m course_lib.grading.torchrun_agent OPTIONS SCRIPT ARGUMENTS`.

The agent is torchrun's own: its options, rendezvous, environment of a worker, logs and handling of failures.
Only, torchrun starts an interpreter for each worker, and importing torch in each was most of a check's time.
Here a fork server imports what a script needs, once. The agent itself has threads, and must not be forked.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import random
import resource
import runpy
import signal
import sys
import traceback
from multiprocessing import forkserver
from typing import Any

gc.disable()  # importing torch takes a quarter longer with garbage collection; a small script leaves little

CPU_S = 120
_FIRST = (
    "course_lib.grading.torchrun_agent",  # stops garbage collection; named, for a server skips `__main__`
    "numpy",
    "torch",
    "torch._dynamo",  # every optimizer's step imports it
    "torch.utils.data.distributed",
)


def main() -> None:
    """Run the script that the command line names; an exit code of 0 says that every worker ended well."""
    multiprocessing.set_forkserver_preload(list(_FIRST))
    forkserver.ensure_running()  # beside the imports below, which the server does not need
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    asked = parse_args(sys.argv[1:])
    config, _, _ = config_from_args(asked)
    config.start_method = "forkserver"
    elastic_launch(config, worker)(asked.training_script, *asked.training_script_args)


def worker(script: str, *arguments: str) -> None:
    """Be the script: as in an interpreter of its own, with a traceback on stderr if it fails.

    It dies with the fork server on Linux, and burns a bounded time everywhere.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    random.seed()  # a fresh interpreter draws these from the system; torch's default seed is a constant
    sys.modules["numpy"].random.seed()
    multiprocessing.set_start_method(None, force=True)  # what a script may still choose
    _keep_groups()
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _keep_groups() -> None:
    """Let process groups live as long as the process.

    The end of a gloo group joins its thread while it holds Python's lock, which the thread may want in order
    to drop its last piece of work (torch 2.13): a script that ends right after a backward would hang.
    """
    from torch.distributed import distributed_c10d

    new_group = distributed_c10d._new_process_group_helper
    kept = []

    def keeping(*args: Any, **options: Any) -> Any:
        kept.append(new_group(*args, **options))
        return kept[-1]

    distributed_c10d._new_process_group_helper = keeping


if __name__ == "__main__":
    main()
