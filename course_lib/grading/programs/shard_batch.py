"""Run `shard_batch` in a rank: some epochs, one of them twice, other seeds, and a world of one rank."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from torch import Tensor

from course_lib.grading.probe import Probe

EPOCHS = (0, 1, 2, 3, 8, 10, 16, 100, 128, 1000)
LATER = (1, 64, 256, 1000, 4096, 65_536)  # seeds after the first one
_hash = hash


def program(
    impl: Callable[..., Any], params: dict[str, Any], inputs: dict[str, Tensor], probe: Probe
) -> dict[str, Any]:
    """Return the schedules as lists of lists of sample numbers.

    Python salts the hash of a string anew in each process. Ranks of a check are forks and share the salt;
    those of a real run do not, so here neither.
    """
    del inputs
    builtins.hash = lambda value: _salted_hash(value, probe.rank)

    def schedule(
        epoch: int,
        *,
        rank: int = probe.rank,
        world_size: int = probe.world_size,
        seed: int = params["seed"],
        more: int = 0,
    ) -> list[list[int]]:
        steps = impl(
            num_samples=params["num_samples"] + more,
            batch_size=params["batch_size"],
            rank=rank,
            world_size=world_size,
            epoch=epoch,
            seed=seed,
        )
        return plain(steps)

    schedule(0, more=5)  # of another data set, which must not matter
    return {
        "epoch 0": schedule(0),
        "epoch 1": schedule(1),
        "epoch 0 again": schedule(0),
        "epochs": list(EPOCHS),
        "one rank": [schedule(epoch, rank=0, world_size=1) for epoch in EPOCHS],
        "one rank, other seeds": [
            schedule(0, rank=0, world_size=1, seed=params["seed"] + later) for later in LATER
        ],
        "one rank, seed 0": [schedule(epoch, rank=0, world_size=1, seed=0) for epoch in EPOCHS],
    }


def _salted_hash(value: Any, salt: int) -> int:
    if isinstance(value, str | bytes):
        return _hash((salt, value))
    if isinstance(value, tuple):
        return _hash(tuple(_salted_hash(item, salt) for item in value))
    return _hash(value)


def plain(steps: Any) -> list[list[int]]:
    """Turn tensors, arrays, ranges and generators of sample numbers into lists.

    Raises: TypeError for anything else.
    """
    try:
        return [[int(sample) for sample in step] for step in steps]
    except (TypeError, ValueError) as error:
        raise TypeError(
            "shard_batch must return one sequence of sample numbers a step, such as [[4, 0], [2]]; "
            f"got {type(steps).__name__} ({error}). Return a list of lists or of 1-D tensors."
        ) from None
