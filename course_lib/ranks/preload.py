"""Imported once by the fork server, so that a new rank starts in hundredths of a second.

Only what every rank needs and nobody edits: torch, what the first dispatch mode imports, `ranks` and `trace`.
Never a technique: a check may have to close it. No threads may run here, since ranks are forked from this
process.
"""

# ruff: noqa: E402
import gc

gc.disable()  # to collect what imports leave takes a quarter of the time of this module, and frees little

import torch

import course_lib.ranks.rank
import course_lib.trace.recorder
from course_lib.trace.intercept import Interceptor

torch.set_num_threads(1)
with Interceptor(()):  # the first use of a dispatch mode imports a good part of torch
    torch.ones(1, requires_grad=True).sum().backward()
assert course_lib.ranks.rank
assert course_lib.trace.recorder
gc.enable()
gc.freeze()  # a full collection in a rank would copy every page of what is loaded: 0.2 s
