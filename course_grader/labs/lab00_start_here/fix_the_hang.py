"""`fix_the_hang`: two programs that wait for ever, one call missing and two calls in another order."""

import numpy as np

from course_grader.labs.lab00_start_here._own_numbers import CALLS, case, of_both_calls, own_numbers
from course_grader.parts.bytes import BytesAtMost
from course_grader.types import Array, Case, Exercise, Expected, rng

NAMES = ("mean_loss", "tokens", "learning_rate")
WITHOUT_LOSSES = {3: 1, 6: 0}  # world size: rank


def _inputs(case: Case, rank: int) -> dict[str, Array]:
    """As many losses as no other rank has; only rank 0's learning rate counts."""
    numbers, calls = rng(case, rank), len(CALLS)
    count = 20 + 7 * rank + int(numbers.integers(0, 6))
    count = 0 if rank == WITHOUT_LOSSES.get(case.world_size) else count
    return {
        "losses": numbers.uniform(1, 4, size=(calls, count)),
        "tokens": numbers.integers(1_000, 9_000, size=calls).astype(float),
        "learning_rate": numbers.uniform(1e-5, 1e-3, size=calls),
    }


EXERCISE = Exercise(
    order=3,
    symbol="end_of_step",
    title="Two programs that wait for ever",
    minutes=15,
    difficulty=2,
    importance=5,
    lines=9,
    points={"values": 1.0, "bytes": 2.0},
    task="Repair both programs, so that `end_of_step` ends and returns on every rank the mean of all losses, "
    "the sum of all tokens, and the learning rate of rank 0.",
    graded={
        "values": "It ends, and every rank returns the three numbers.",
        "bytes": "Sums travel, not the losses themselves.",
    },
    details="1 to 4 ranks (hidden: 5, 6); ranks hold different numbers of losses, one of them none; called "
    "twice, with other numbers. Each call with async_op=True must have been waited for, with wait(), when "
    "`end_of_step` returns: a barrier or a later call does not count as waiting. Bytes: a call hands at most "
    "64 bytes to collectives and sends together (four float64 numbers are 32); barriers are free.",
    signature="(losses, tokens, learning_rate)",
    scenario=own_numbers(inputs=_inputs, arguments=("losses", "tokens", "learning_rate"), returns=NAMES),
    hints=(
        "Read both reports again: which rank is missing, and what does it do instead? Which two calls met?",
        "A collective is a call of the whole group. Move every collective out of the branches that only "
        "some ranks take; what only rank 0 wants (printing) stays inside.",
        "Program 1: which line of the branch is rank 0's alone? Program 2: it does not matter which call "
        "comes first. What must be true of the lists of calls of all ranks?",
    ),
)


def _world(n: int) -> Case:
    empty = WITHOUT_LOSSES.get(n)
    return case(n, "" if empty is None else f"{n} ranks, no losses on rank {empty}")


OPEN = [_world(n) for n in (1, 2, 3, 4)]
HIDDEN = [_world(5), _world(6)]


def expected(case: Case, loss: str = "of all", rate: str = "of rank 0") -> Expected:
    """loss, rate: what every rank ends with."""
    n = case.world_size
    shards = [_inputs(case, rank) for rank in range(n)]

    def one_call(call: int) -> Expected:
        losses, tokens, rates = ([shard[name][call] for shard in shards] for name in _inputs(case, 0))
        means = [float(mine.mean()) if len(mine) else float("nan") for mine in losses]
        local = loss == "of each"
        return {
            "mean_loss": means
            if local
            else [float(np.mean(means) if loss == "of means" else np.concatenate(losses).mean())] * n,
            "tokens": [float(count) for count in tokens] if local else [float(sum(tokens))] * n,
            "learning_rate": [float(r) for r in rates]
            if local
            else [float({"mean": np.mean(rates), "sum": sum(rates)}.get(rate, rates[0]))] * n,
        }

    return of_both_calls(one_call)


LOCAL_ONLY = {"loss": "of each"}
MISTAKES = {
    "the means of the ranks are averaged, though ranks hold different numbers of losses": {
        "loss": "of means"
    },
    "the ranks' rates are averaged": {"rate": "mean"},
    "the ranks' rates are added": {"rate": "sum"},
}
PARTS = [
    BytesAtMost(
        windows=CALLS,
        count="put in",
        at_most=lambda case: 64,
        must="a rank may hand to collectives and sends",
        why="Sums travel, not the losses themselves.",
    )
]
