"""Judge's half of `pretended_device`: devices that the seed draws, what a harness reads there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from course_grader.parts.points import Point, no_inputs, point_case
from course_grader.types import Case, Scenario

Reduce = Callable[[list[float]], float]


def device(warmup: int, repeats: int, cool: bool = False) -> dict[str, Any]:
    """A device to be timed so often.

    The first calls are 5 to 40 times slower, one later call in five is 2 to 9 times slower, and the others
    differ by up to 20 percent (with many calls, by hardly anything). On a `cool` device the first calls are
    the fastest, for its clock falls when it gets hot, and a call takes little.
    """
    return {"warmup": warmup, "repeats": repeats, "cool": cool}


def pretended_device() -> Scenario:
    """impl(fn, *, clock, synchronize, warmup, repeats) at each `device`, and once more when it is slower."""
    return Scenario(
        rank_side="course_grader.inside.programs.lab01:pretended_device", inputs=no_inputs, cases=_cases
    )


def _cases(chosen: Sequence[dict[str, Any]], seed: int) -> list[Case]:
    draw = np.random.default_rng([seed, 16])
    points = [point for one in chosen for point in _points(draw, **one)]
    return point_case(seed, points, f"{len(chosen)} pretended devices")


def _points(draw: np.random.Generator, warmup: int, repeats: int, cool: bool) -> list[dict[str, Any]]:
    slowest, spread = -4.5 if cool else -1, 0.1 if repeats < 10 else 1e-4
    base_s = float(10 ** draw.uniform(-5.3, slowest))
    work = base_s * draw.uniform(1 - spread, 1 + spread, size=warmup + repeats)
    work[:warmup] *= draw.uniform(0.3, 0.6, size=warmup) if cool else draw.uniform(5, 40, size=warmup)
    late = warmup + draw.permutation(repeats)[: repeats // 5]
    work[late] *= draw.uniform(2, 9, size=len(late))
    point = {
        "warmup": warmup,
        "repeats": repeats,
        "launch_s": base_s * float(draw.uniform(0.05, 0.3)),
        "busy_s": base_s * float(draw.uniform(1, 3)),
    }
    return [
        {**point, "again": again, "device_s": [float(w) for w in work * (1.25 if again else 1)]}
        for again in (False, True)
    ]


def timed(
    p: Point, reduce: Reduce = median, *, warmup: bool = True, before: bool = True, after: bool = True
) -> float:
    """Time a device as an answer would, with or without each precaution, s."""
    now_s, idle_s, samples = 0.0, p["busy_s"], []
    skip = p["warmup"] if warmup else 0
    for i, work_s in enumerate(p["device_s"][: skip + p["repeats"]]):
        if before and i >= skip:
            now_s = max(now_s, idle_s)
        start_s = now_s
        now_s += p["launch_s"]
        idle_s = max(now_s, idle_s) + work_s
        if after and i >= skip:
            now_s = max(now_s, idle_s)
        if i >= skip:
            samples.append(now_s - start_s)
    return reduce(samples)
