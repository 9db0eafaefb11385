"""`checkpoint_interval`: Young's interval, judged by the goodput it earns, so that Daly's is right too."""

import math
from typing import Any

import numpy as np

from course_grader.expected.samples import samples
from course_grader.parts.numbers import EveryPoint, Point
from course_grader.types import Exercise, Why

WASTE = 0.01  # of what the best interval loses: Young's costs at most 0.4% where save < MTBF / 30


def _draw(rng: np.random.Generator, count: int) -> list[Point]:
    points: list[Point] = []
    for _ in range(count):
        gpus, mtbf = int(2 ** rng.uniform(3, 17)), float(10 ** rng.uniform(7, 9))
        save = mtbf / gpus * float(10 ** rng.uniform(-4, -1.5))
        points.append({"mtbf_per_gpu_s": mtbf, "save_s": save, "num_gpus": gpus})
    return points


def _goodput(interval: float, mtbf: float, save: float) -> float:
    """Useful time of a segment over its expected time, under exponential failures (Daly 2006, eq. 13)."""
    exponent = (interval + save) / mtbf
    return interval / (mtbf * math.expm1(exponent)) if exponent < 600 else 0.0


def _best(mtbf: float, save: float) -> float:
    """Where the derivative of the goodput is 0: interval = mtbf (1 - exp(-(interval + save) / mtbf))."""
    low, high = 0.0, mtbf
    for _ in range(100):
        middle = (low + high) / 2
        below = middle < -mtbf * math.expm1(-(middle + save) / mtbf)
        low, high = (middle, high) if below else (low, middle)
    return low


def _problem(p: Point, answer: Any) -> Why | None:
    if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
        return Why("the interval must be a number of seconds", f"got {answer!r:.60}")
    mtbf, save = p["mtbf_per_gpu_s"] / p["num_gpus"], p["save_s"]
    best = _best(mtbf, save)
    most, got = _goodput(best, mtbf, save), _goodput(answer, mtbf, save) if answer > 0 else 0.0
    if most - got <= WASTE * (1 - most):
        return None
    return Why(
        f"the goodput must be near the best, {most:.4f} at an interval of {best:,.0f} s",
        f"got {got:.4f} at {answer:,.0f} s",
    )


def _young(p: Point, *, gpus: int = 1, times: float = 2.0) -> float:
    return math.sqrt(times * p["save_s"] * p["mtbf_per_gpu_s"] * float(p["num_gpus"]) ** -gpus)


EXERCISE = Exercise(
    order=7,
    title="How often to save",
    minutes=15,
    difficulty=2,
    importance=4,
    lines=2,
    points={"interval": 1.0},
    task="Write a function that returns the seconds of work between two saves that lose the least time.",
    graded={"interval": "Its goodput is near the best one's."},
    details="At 20 points and more that the seed draws: 8 to 131,072 GPUs, saves of up to a thirtieth of the "
    "time between failures. The interval loses at most 1% more time than the best one.",
    signature="(mtbf_per_gpu_s, save_s, num_gpus)",
    forbids=("goodput",),
    scenario=samples(stream=137, draw=_draw),
    hints=(
        "Any GPU that fails stops the job. How often does one of n fail?",
        "A share save / interval of the time goes into saving; a failure costs half an interval on average.",
        "Both losses as functions of the interval: one falls, one grows. Where is their sum smallest?",
    ),
)

OPEN = [{"mtbf_per_gpu_s": 11_135.0 * 16_384, "save_s": 60.0, "num_gpus": 16_384}, 20]
HIDDEN = [60]
PARTS = [
    EveryPoint(
        part="interval",
        problem=_problem,
        rules={
            "the job is taken to fail as seldom as one GPU": lambda p: _young(p, gpus=0),
            "more GPUs are taken to fail less often": lambda p: _young(p, gpus=-1),
            "the 2 is missing: a failure costs half an interval, not a whole one": lambda p: _young(
                p, times=1
            ),
            "half an interval is counted twice": lambda p: _young(p, times=4),
            "the root is missing": lambda p: _young(p) ** 2,
        },
        near=lambda a, b: isinstance(a, int | float) and math.isclose(a, b, rel_tol=1e-6),
    )
]
