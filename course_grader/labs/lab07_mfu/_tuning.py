"""Judge's half of `tuning`: clusters priced by the step-time model, drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from course_grader.parts.points import Point, no_inputs, point_case
from course_grader.types import Case, Scenario
from course_lib.config import ModelConfig
from course_lib.cost.cluster import dgx_h100
from course_lib.cost.trials import Setting, Trials
from course_lib.planner.request import Request
from course_lib.planner.trials import trials_of

SHAPES = ((2048, 16), (2560, 32), (4096, 32), (5120, 40), (6656, 60), (8192, 80))
"""(model_dim, num_layers) of Llama-like models from 1 to 70 billion parameters."""


def tuning(stream: int, loses: Sequence[Callable[[Point], bool]]) -> Scenario:
    """impl(trials) at clusters that the seed draws. OPEN and HIDDEN say how many.

    Args:
        stream: keeps the draws of exercises apart.
        loses: rules of thumb; each must be wrong at one of the points at least.
    """

    def cases(chosen: Sequence[Any], seed: int) -> list[Case]:
        rng = np.random.default_rng([seed, stream])
        while True:
            points = [draw_point(rng) for _ in range(sum(chosen))]
            if all(any(rule(point) for point in points) for rule in loses):
                return point_case(seed, points, f"{len(points)} clusters")

    return Scenario(rank_side="course_grader.inside.programs.lab07:tuning", inputs=no_inputs, cases=cases)


def draw_point(rng: np.random.Generator) -> Point:
    """Draw a model, GPUs and a sequence length of which some setting fits."""
    while True:
        width, layers = SHAPES[int(rng.integers(len(SHAPES)))]
        config = ModelConfig(
            vocab_size=int(rng.choice([32_000, 128_256])),
            model_dim=width,
            num_layers=layers + int(rng.integers(-4, 5)),
            num_heads=width // 128,
            num_kv_heads=width // 128 // int(rng.choice([1, 2, 4])),
            ffn_dim=int(width * rng.uniform(2.5, 4)) // 256 * 256,
            max_seq_len=2**20,
        )
        gpus, seq_len = int(2 ** rng.integers(3, 10)), int(2 ** rng.integers(11, 14))
        largest = 2 ** int(rng.integers(3, 6))
        trials = trials_of(
            Request(
                config=config,
                cluster=dgx_h100(gpus // 8),
                num_gpus=gpus,
                seq_len=seq_len,
                tokens_per_step=seq_len * gpus * largest,
            ),
            microbatch_sizes=[2**k for k in range(largest.bit_length())],
        )
        if fitting(plain := as_point(trials)):
            return plain


def as_point(trials: Trials) -> Point:
    """Return trials as plain data."""
    settings = [[*setting, trials.memory[setting], trials.reached[setting]] for setting in trials.memory]
    return {
        "microbatch_sizes": list(trials.microbatch_sizes),
        "recomputes": list(trials.recomputes),
        "shard_sizes": list(trials.shard_sizes),
        "limit_bytes": trials.limit_bytes,
        "max_runs": trials.max_runs,
        "settings": settings,
    }


def fitting(point: Point) -> dict[Setting, float]:
    """Return the settings that fit, with the MFU they reach."""
    return {tuple(row[:3]): row[4] for row in point["settings"] if row[3] <= point["limit_bytes"]}
