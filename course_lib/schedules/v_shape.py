"""Fold the pipeline: each rank holds a stage of the way there and one of the way back.

Rank r has stages r and 2p - 1 - r, so micro-batches turn round on the last rank, and the loss is computed on
the first. Both halves of the model are near both ends of the pipeline: backwards start early, every rank
holds equally many activations, and forwards of one half run beside backwards of the other. That is the idea
of ZB-V, and of DualPipe, which folds two pipelines in opposite directions over one another and hides
messages in each pair. Lab 09. torch has `ScheduleZBVZeroBubble` and `ScheduleDualPipeV`, with lists written
down in phases.
"""

from __future__ import annotations

from course_lib.schedules.actions import Action, Kind, Schedule, previous_stage

PRIORITY: tuple[tuple[Kind, bool], ...] = (
    ("F", True),
    ("I", True),
    ("I", False),
    ("F", False),
    ("W", True),
    ("W", False),
)
"""What a rank does first of what it could do: (kind, on the way back). What others wait for, and what frees
memory, comes before what starts something new; a weight gradient comes last."""


def v_shape(num_ranks: int, num_microbatches: int) -> Schedule:
    """Let each rank do, tick by tick, the most urgent action that is possible.

    The list follows from F = I = W; other costs run the same list. On equal stages a step takes about
    m (F + I + W) + (p - 1) F / 2 of a rank's layers: half of ZB-H1's bubble.
    Memory: at most 2p of the half stages' micro-batches in flight on every rank, which is 1F1B's p.
    Reference: Qi et al., Pipeline Parallelism with Controllable Memory (arXiv:2405.15362); DeepSeek-AI,
    DeepSeek-V3 (arXiv:2412.19437), section 3.2.1.
    Raises: ValueError for sizes that make no pipeline.
    """
    if min(num_ranks, num_microbatches) < 1:
        raise ValueError(
            "a pipeline must have at least one rank and one micro-batch; got "
            f"num_ranks={num_ranks}, num_microbatches={num_microbatches}. Use 1 or more."
        )
    ranks = [_Rank(rank, num_ranks, num_microbatches) for rank in range(num_ranks)]
    done: set[Action] = set()
    while any(rank.remaining for rank in ranks):
        done |= {action for rank in ranks if (action := rank.take(done)) is not None}  # one tick
    return Schedule("v_shape", 2 * num_ranks, num_microbatches, tuple(tuple(rank.actions) for rank in ranks))


class _Rank:
    """One rank's counters while the list is made."""

    def __init__(self, rank: int, num_ranks: int, num_microbatches: int) -> None:
        self.num_stages, self.num_microbatches = 2 * num_ranks, num_microbatches
        self.stage_of = {False: rank, True: self.num_stages - 1 - rank}
        self.next: dict[tuple[Kind, bool], int] = dict.fromkeys(PRIORITY, 0)
        self.held = 0
        self.remaining = 6 * num_microbatches
        self.actions: list[Action] = []

    def take(self, done: set[Action]) -> Action | None:
        """Do the most urgent action that what is done allows."""
        for kind, back in PRIORITY:
            action = Action(kind, self.next[kind, back], self.stage_of[back])
            if action.microbatch < self.num_microbatches and self._possible(action, back, done):
                self.next[kind, back] += 1
                self.held += {"F": 1, "W": -1}.get(kind, 0)
                self.remaining -= 1
                self.actions.append(action)
                return action
        return None

    def _possible(self, action: Action, back: bool, done: set[Action]) -> bool:
        if action.kind == "F" and self.held >= self.num_stages:
            return False
        if action.kind != "F" and self.next["F" if action.kind == "I" else "I", back] <= action.microbatch:
            return False
        source = previous_stage(action, self.num_stages)
        return source is None or action._replace(stage=source) in done
