"""`measure`: a timing harness, driven by a device whose clock is a number.

What the answer must be is computed from the durations; each usual slip is played on the same device and so
has its own number: no warm-up, no synchronise, the mean, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from course_lib.grading.exercise import Case, Exercise, Part, RankData
from course_lib.grading.points import Formula, Point, judge, no_inputs, no_oracle, point_case

EXERCISE = Exercise(
    id="measure_time",
    lab="01_gpu_hardware",
    order=5,
    symbol="measure",
    title="A stopwatch for a machine that answers later",
    minutes=20,
    difficulty=3,
    importance=5,
    lines=11,
    points={"seconds": 1.5, "calls": 0.5},
    graded="seconds: on a pretended device that works after the call has returned, within 0.1% of the "
    "median of one call's time, warm-up left out. calls: fn is called exactly warmup + repeats times, "
    "also when the same fn is measured again later (the device has cooled down).",
    signature="(fn, *, clock, synchronize, warmup, repeats)",
    closed=("course_lib.roof", "course_lib.cost"),
    hints=(
        "On a GPU fn() returns when the work is queued, not when it is done. Which line makes you wait "
        "until it is?",
        "The device must be idle when you start the watch, and idle again when you stop it: synchronise "
        "before both readings.",
        "Take one reading pair a repetition, into a list. The median of an even number of values is the "
        "mean of the middle two; statistics.median knows.",
    ),
)


def _point(draw: np.random.Generator, warmup: int, repeats: int, cool: bool) -> Point:
    """The first calls are 5 to 40 times slower; one later call in five is 2 to 9 times slower.

    The others differ by up to 20 percent; where there are many of them, by nothing that shows. On a `cool`
    device the first calls are the fastest, for its clock falls when it gets hot, and a call takes little.
    """
    slowest, spread = -4.5 if cool else -1, 0.1 if repeats < 10 else 1e-4
    base_s = float(10 ** draw.uniform(-5.3, slowest))
    work = base_s * draw.uniform(1 - spread, 1 + spread, size=warmup + repeats)
    work[:warmup] *= draw.uniform(0.3, 0.6, size=warmup) if cool else draw.uniform(5, 40, size=warmup)
    late = warmup + draw.permutation(repeats)[: repeats // 5]
    work[late] *= draw.uniform(2, 9, size=len(late))
    return {
        "warmup": warmup,
        "repeats": repeats,
        "launch_s": base_s * float(draw.uniform(0.05, 0.3)),
        "busy_s": base_s * float(draw.uniform(1, 3)),
        "device_s": [float(w) for w in work],
        "again_s": [1.25 * float(w) for w in work],
    }


def cases(seed: int, hidden: bool) -> list[Case]:
    """Odd, even and single repetitions, with and without warm-up."""
    draw = np.random.default_rng([seed, 16])
    plan = [(3, 10), (2, 1), (0, 5), (4, 6)] + ([(1, 7), (5, 20), (0, 2), (3, 2)] if hidden else [])
    points = [_point(draw, *counts, cool=False) for counts in plan] + [_point(draw, 4, 7, cool=True)]
    return point_case(seed, points, f"{len(points)} pretended devices")


inputs, oracle = no_inputs, no_oracle
Reduce = Callable[[list[float]], float]


def _play(
    p: Point, reduce: Reduce = median, *, warmup: bool = True, before: bool = True, after: bool = True
) -> float:
    """Time the device as an answer would, with or without each precaution."""
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


def _upper(samples: list[float]) -> float:
    return sorted(samples)[len(samples) // 2]


def _near(p: Point) -> dict[str, float | str]:
    return {
        "there is no warm-up: the first, slow calls are timed": _play(p, warmup=False),
        "you do not synchronise before you stop the watch: only the launch is timed": _play(p, after=False),
        "you do not synchronise at all: only the launch is timed": _play(p, before=False, after=False),
        "you start the watch while the device still works off the warm-up: synchronise before, too": _play(
            p, before=False
        ),
        "you take the mean instead of the median": _play(p, fmean),
        "you take the minimum instead of the median": _play(p, min),
        "you take the maximum instead of the median": _play(p, max),
        "you give the sum of all repetitions": _play(p, sum),
        "you take the upper of the two middle values: their mean is asked": _play(p, _upper),
        "you take the last repetition": _play(p, lambda s: s[-1]),
        "you take the mean, and do not warm up": _play(p, fmean, warmup=False),
        "the result is in milliseconds": 1e3 * _play(p),
    }


def _words(p: Point) -> str:
    work = ", ".join(f"{1e3 * w:.3g}" for w in p["device_s"][:8])
    more = ", ..." if len(p["device_s"]) > 8 else ""
    return (
        f"warmup={p['warmup']}, repeats={p['repeats']}; a launch takes {1e3 * p['launch_s']:.3g} ms, "
        f"the device then {work}{more} ms; before, it works for another {1e3 * p['busy_s']:.3g} ms"
    )


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """The seconds, then the number of calls."""
    del want
    points = [
        {**point, "device_s": point[key]}
        for point in case.params["points"]
        for key in ("device_s", "again_s")
    ]
    pairs = list(zip(points, got[0].values["answers"], strict=True))
    if all(answer["clock_reads"] == 0 for _, answer in pairs):
        text = "`clock` must tell the time; it was never called. Read clock(), not time.perf_counter()."
        seconds = Part("seconds", False, text)
    else:
        formula = Formula(want=_play, near=_near, unit="s")
        seconds = judge("seconds", formula, [(p, a["seconds"]) for p, a in pairs], _words, "the time")
    return [seconds, _calls(pairs)]


def _calls(pairs: Sequence[tuple[Point, Any]]) -> Part:
    for p, answer in pairs:
        exact = p["warmup"] + p["repeats"]
        if answer["calls"] != exact:
            text = (
                f"fn must be called warmup + repeats = {p['warmup']} + {p['repeats']} = {exact} times; it "
                f"was called {answer['calls']} times. On a real machine each call costs time."
            )
            return Part("calls", False, text)
    return Part("calls", True, "warmup + repeats each time")
