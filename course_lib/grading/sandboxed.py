"""Entry of the judge's sandbox: `python -m course_lib.grading.sandboxed IN OUT`, two file descriptors."""

from __future__ import annotations

import importlib
import sys
from multiprocessing import forkserver

if __name__ == "__main__":
    forkserver.set_forkserver_preload(["course_lib.comm.preload"])
    forkserver.ensure_running()  # it loads torch while this process does
    importlib.import_module("course_lib.grading.servant").serve(int(sys.argv[1]), int(sys.argv[2]))
