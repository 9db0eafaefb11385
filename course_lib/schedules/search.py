"""Look for the fastest schedule that fits into memory, among those with two numbers per rank.

Every warm-up that falls from the first rank to the last, and every lag of the weight gradients that the
limit still allows, is written down and simulated. Lab 09's game is played against it. The zero-bubble
project searches in the same way, with the order inside the steady state as a third choice.
"""

from __future__ import annotations

from collections.abc import Iterator

from course_lib.schedules.actions import Schedule
from course_lib.schedules.generators import weave
from course_lib.schedules.simulate import StageCosts, Timeline, simulate


def best_schedule(num_ranks: int, num_microbatches: int, costs: StageCosts, most_in_flight: int) -> Timeline:
    """Return the fastest timeline found in which no rank holds more than `most_in_flight` micro-batches.

    A micro-batch is held from its forward to its weight gradient, `Timeline.peak_in_flight`. One stage a
    rank.
    Raises: ValueError if not even one micro-batch may be in flight.
    """
    if most_in_flight < 1:
        raise ValueError(f"a rank must hold a micro-batch; got most_in_flight={most_in_flight}. Allow one.")
    found = [simulate(s, costs) for s in candidates(num_ranks, num_microbatches, most_in_flight)]
    return min(found, key=lambda timeline: float(timeline.step_s))


def candidates(num_ranks: int, num_microbatches: int, most_in_flight: int) -> Iterator[Schedule]:
    """Write down every schedule with warm-ups base + slope * (p - 1 - rank) and lags up to a cap."""
    most = most_in_flight - 1
    seen = set()
    for slope in (1, 2, 3):
        for base in range(most + 1):
            for cap in range(most + 1):
                warmup = [min(base + slope * (num_ranks - 1 - r), most) for r in range(num_ranks)]
                lag = [min(cap, most - ahead) for ahead in warmup]
                if (key := (*warmup, *lag)) not in seen:
                    seen.add(key)
                    yield _written(num_ranks, num_microbatches, warmup, lag)


def _written(num_ranks: int, num_microbatches: int, warmup: list[int], lag: list[int]) -> Schedule:
    ranks = []
    for rank in range(num_ranks):
        work = [(i, rank) for i in range(num_microbatches)]
        ranks.append(weave(work, work, warmup[rank], lag[rank]))
    return Schedule("best found", num_ranks, num_microbatches, tuple(ranks))
