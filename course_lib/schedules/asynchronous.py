"""Run a pipeline without flushing it: each stage updates its weights after each of its backwards.

No micro-batch waits for an optimizer step, so there is no bubble after the first fill. The price: a stage's
forward uses older weights than a synchronous step would, by as many updates as micro-batches are in flight,
and the stage must keep the version each of them used, so that its backward fits its forward (weight
stashing). Lab 09. Reference: PipeDream (Harlap et al., arXiv:1806.03377). No large model is
trained so today: the updates are no longer those of one process.
"""

from __future__ import annotations

from course_lib.schedules.actions import Schedule
from course_lib.schedules.generators import one_f_one_b


def asynchronous(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return PipeDream's order: 1F1B's lists, where every micro-batch is a batch and nothing is flushed.

    Memory: p - rank micro-batches in flight and as many versions of the stage's weights.
    Reference: Harlap et al. (arXiv:1806.03377).
    """
    lists = one_f_one_b(num_ranks, num_microbatches)
    return Schedule("asynchronous", lists.num_stages, num_microbatches, lists.ranks)
