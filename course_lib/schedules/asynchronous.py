"""Run a pipeline without flushing it: each stage updates its weights after each of its backwards.

No micro-batch waits for an optimizer step, so there is no bubble after the first fill. The price: a stage's
forward uses older weights than a synchronous step would, by as many updates as micro-batches are in flight,
and the stage must keep the version each of them used, so that its backward fits its forward (weight
stashing). Lab 09. Reference: PipeDream (Harlap et al., arXiv:1806.03377). No large model is
trained so today: the updates are no longer those of one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.schedules.actions import Action, Schedule
from course_lib.schedules.generators import one_f_one_b


def asynchronous(num_ranks: int, num_microbatches: int) -> Schedule:
    """Return PipeDream's order: 1F1B's lists, where every micro-batch is a batch and nothing is flushed.

    Memory: p - rank micro-batches in flight and as many versions of the stage's weights.
    Reference: Harlap et al. (arXiv:1806.03377).
    """
    lists = one_f_one_b(num_ranks, num_microbatches)
    return Schedule("asynchronous", lists.num_stages, num_microbatches, lists.ranks)


@dataclass(frozen=True)
class WeightVersions:
    """Say which weights each micro-batch meets on one stage."""

    used: dict[int, int]
    """Micro-batch -> how many updates its forward's weights had seen; its backward must use the same."""
    staleness: dict[int, int]
    """Micro-batch -> how many updates its own gradient comes late: version it updates minus version used."""
    most_kept: int
    """Versions held at once, the current one counted."""


def weight_versions(actions: Sequence[Action], stage: int) -> WeightVersions:
    """Follow one stage through its actions; it updates its weights at the end of each backward (B or W).

    Raises: ValueError for a backward without a forward before it.
    """
    version, most = 0, 1
    used: dict[int, int] = {}
    staleness: dict[int, int] = {}
    for action in actions:
        if action.stage != stage or action.kind == "I":
            continue
        if action.kind == "F":
            used[action.microbatch] = version
        elif action.microbatch not in used:
            raise ValueError(f"a backward must follow its forward; got {action} first. Put its F before it.")
        else:
            staleness[action.microbatch] = version - used[action.microbatch]
            version += 1
        waiting = {v for i, v in used.items() if i not in staleness}
        most = max(most, len(waiting | {version}))
    return WeightVersions(used, staleness, most)
