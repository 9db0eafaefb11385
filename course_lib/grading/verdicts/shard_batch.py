"""`shard_batch`: which samples each rank takes at each step of an epoch. Any permutation is right."""

from __future__ import annotations

import math
from typing import Any

from course_lib.grading.exercise import Array, Case, Exercise, Part, RankData

Schedule = list[list[int]]
_ALIKE = (
    "Do all ranks shuffle alike? torch's default generator differs from rank to rank, and so does Python's "
    "hash of a string."
)

EXERCISE = Exercise(
    id="shard_batch",
    lab="03_data_parallel",
    order=1,
    symbol="shard_batch",
    title="Who trains on which samples",
    minutes=20,
    difficulty=2,
    importance=4,
    lines=8,
    points={"values": 2.0, "epochs": 1.0},
    graded="Values, at 1-4 ranks (hidden: 5, 6) and sizes that do not divide: every rank has "
    "ceil(num_samples / batch_size) steps; at each step the ranks' shards are disjoint, differ by at most "
    "one sample, and together are batch_size samples (the last step: what is left), the same ones at any "
    "world size; an epoch holds each sample once. Any shuffle is right. Epochs: every epoch and every seed "
    "puts other samples together, and equal arguments give an equal schedule.",
    closed=("course_lib.model.batches", "torch:sampler"),
    signature="(num_samples, batch_size, rank, world_size, epoch, seed)",
    hints=(
        "Two decisions, in this order: which samples form the batch of step t (the same answer on all "
        "ranks), then which of these are mine.",
        "All ranks must shuffle alike, and torch's default generator is seeded differently on each rank. A "
        "torch.Generator of your own, seeded from `seed` and `epoch`, is the same everywhere.",
        "Permute, cut the order into batches, and from each batch take every world_size-th sample, "
        "beginning at your rank. Such a slice is never longer than another one by more than one.",
    ),
)


def cases(seed: int, hidden: bool) -> list[Case]:
    """Sizes that divide and sizes that do not; fewer samples in the last batch than ranks."""
    sizes = [(1, 24, 6), (2, 40, 8), (3, 41, 8), (4, 50, 12)]
    if hidden:
        sizes += [(5, 301, 43), (6, 31, 6), (4, 7, 12)]
    return [
        Case(
            world_size=n,
            seed=seed,
            params={"num_samples": samples, "batch_size": batch, "seed": seed % 1000},
            label=f"{n} rank{'s' * (n > 1)}, {samples} samples in batches of {batch}",
            trace=False,
        )
        for n, samples, batch in sizes
    ]


def inputs(case: Case, rank: int) -> dict[str, Array]:
    """All is in the arguments."""
    del case, rank
    return {}


def oracle(case: Case) -> dict[str, Any]:
    """Any permutation is right, so `verdict` looks at properties instead."""
    del case
    return {}


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Judge the schedule of epoch 0, then what changes with the epoch."""
    del want
    ranks = [data.values["epoch 0"] for data in got]
    problem = (
        _steps(case, ranks)  # the others read every rank's every step
        or _overlap(ranks)
        or _batches(case, ranks)
        or _complete(case, ranks)
        or _balance(ranks)
        or _same_batches(ranks, got[0].values["one rank"][0], _unrepeated(got))
    )
    if problem:
        return [Part("values", False, problem, gate=True)]
    words = "each sample once an epoch, shards disjoint and even"
    return [Part("values", True, words), _epochs(case, got)]


def _steps(case: Case, ranks: list[Schedule]) -> str:
    samples, batch = case.params["num_samples"], case.params["batch_size"]
    steps = math.ceil(samples / batch)
    for rank, schedule in enumerate(ranks):
        if len(schedule) != steps:
            return (
                f"every rank must have ceil({samples} / {batch}) = {steps} steps; rank {rank} has "
                f"{len(schedule)}. A rank with fewer steps than the others leaves them waiting in an "
                "all_reduce; keep the smaller last batch, and return an empty shard where a rank has no "
                "sample in it."
            )
    return ""


def _overlap(ranks: list[Schedule]) -> str:
    if len(ranks) > 1 and all(schedule == ranks[0] for schedule in ranks):
        return "the shards of a step must be disjoint; every rank got the same samples. Does `rank` enter?"
    for step in range(len(ranks[0])):
        owner: dict[int, int] = {}
        for rank, schedule in enumerate(ranks):
            for sample in schedule[step]:
                if sample in owner:
                    who = (
                        f"ranks {owner[sample]} and {rank}" if owner[sample] != rank else f"rank {rank} twice"
                    )
                    return (
                        f"the shards of a step must be disjoint; at step {step} sample {sample} is with "
                        f"{who}. {_ALIKE}"
                    )
                owner[sample] = rank
    return ""


def _batches(case: Case, ranks: list[Schedule]) -> str:
    samples, batch = case.params["num_samples"], case.params["batch_size"]
    for step in range(len(ranks[0])):
        size = sum(len(schedule[step]) for schedule in ranks)
        wanted = min(batch, samples - step * batch)
        if size != wanted:
            hint = (
                " `batch_size` counts the samples of all ranks together."
                if size == wanted * len(ranks)
                else ""
            )
            return f"step {step} must hold {wanted} samples over all ranks; got {size}.{hint}"
    return ""


def _complete(case: Case, ranks: list[Schedule]) -> str:
    seen = [sample for schedule in ranks for step in schedule for sample in step]
    missing = sorted(set(range(case.params["num_samples"])) - set(seen))
    if missing or len(seen) != len(set(seen)):
        twice = sorted({s for s in seen if seen.count(s) > 1})
        text = f"an epoch must hold each sample exactly once; missing {missing[:5]}, repeated {twice[:5]}."
        own = [[sample for step in schedule for sample in step] for schedule in ranks]
        return text if any(len(mine) > len(set(mine)) for mine in own) or not twice else f"{text} {_ALIKE}"
    return ""


def _balance(ranks: list[Schedule]) -> str:
    for step in range(len(ranks[0])):
        sizes = [len(schedule[step]) for schedule in ranks]
        if max(sizes) - min(sizes) > 1:
            return (
                f"shards of a step may differ by one sample; at step {step} the ranks hold {sizes}. The "
                "others wait for the rank with the most."
            )
    return ""


def _unrepeated(got: list[RankData]) -> str:
    """Say that a rank got two schedules for equal arguments; "" if none did."""
    for rank, data in enumerate(got):
        if data.values["epoch 0"] != data.values["epoch 0 again"]:
            return (
                f"equal arguments must give equal schedules; rank {rank} got two. Seed a generator, in every "
                "call."
            )
    return ""


def _same_batches(ranks: list[Schedule], alone: Schedule, unrepeated: str) -> str:
    for step in range(len(ranks[0]) if len(ranks) > 1 else 0):
        together = sorted(sample for schedule in ranks for sample in schedule[step])
        if step >= len(alone) or together != sorted(alone[step]):
            text = (
                f"the batch of a step must be the same samples at any world size; at step {step} "
                f"{len(ranks)} ranks train on others than one rank does. "
            )
            why = unrepeated or "cut the batch first, then shard it; not the epoch."
            return text + why[0].upper() + why[1:]
    return ""


def _epochs(case: Case, got: list[RankData]) -> Part:
    """A handful of samples can meet the same order twice by chance: only repeatability is asked of them."""
    first, second = got[0].values["epoch 0"], got[0].values["epoch 1"]
    other_seeds = got[0].values["one rank, other seeds"]
    if text := _unrepeated(got):
        return Part("epochs", False, text)
    if case.params["num_samples"] < 20:
        return Part("epochs", True, "repeatable")
    epochs = got[0].values["one rank"]
    for words, schedules in (("", epochs), (" of seed 0", got[0].values["one rank, seed 0"])):
        text = _shuffled(case.params["num_samples"], schedules, got[0].values["epochs"], words)
        if text:
            return Part("epochs", False, text)
    if any(_together(other) == _together(epochs[0]) for other in other_seeds):
        text = "another `seed` must be another shuffle; epoch 0 is the same with both. Does `seed` enter?"
        return Part("epochs", False, text)
    if case.world_size > 1 and len(first) > 1 and _members(first) == _members(second):
        text = "rank 0 must not see the same samples in every epoch; it does. Shuffle, then shard."
        return Part("epochs", False, text)
    return Part("epochs", True, "another shuffle each epoch, repeatable")


def _shuffled(samples: int, schedules: list[Schedule], names: list[int], words: str) -> str:
    """ "" if each of these epochs is shuffled, and none as another."""
    for i, batches in enumerate(schedules):
        if all(_neighbours(batch, samples) for batch in batches):
            return (
                f"an epoch must be shuffled; in epoch {names[i]}{words} every batch is a run of successive "
                "numbers."
            )
        equal = next((e for e in range(i) if _together(schedules[e]) == _together(batches)), None)
        if equal is not None:
            how = "equals" if batches == schedules[equal] else "puts the same samples together as"
            return (
                f"epoch {names[i]}{words} must be another shuffle; it {how} epoch {names[equal]}. Does "
                "`epoch` enter?"
            )
    return ""


def _neighbours(batch: list[int], num_samples: int) -> bool:
    """Whether the batch is a run of successive numbers, the last one followed by 0."""
    members = set(batch)
    return sum((sample + 1) % num_samples not in members for sample in members) <= 1


def _together(schedule: Schedule) -> set[frozenset[int]]:
    return {frozenset(step) for step in schedule}


def _members(schedule: Schedule) -> set[int]:
    return {sample for step in schedule for sample in step}
