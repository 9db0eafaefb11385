"""`roofline`: intensity, ridge point, least time and what limits it, by own arithmetic at unseen points."""

from __future__ import annotations

from typing import Any

import numpy as np

from course_lib.grading.exercise import Case, Exercise, Part, RankData
from course_lib.grading.points import Formula, Point, judge_dicts, no_inputs, no_oracle, point_case

EXERCISE = Exercise(
    id="roofline",
    lab="01_gpu_hardware",
    order=4,
    symbol="roofline",
    title="The roofline",
    minutes=15,
    difficulty=2,
    importance=5,
    lines=10,
    points={"intensity": 0.5, "ridge": 0.5, "time_s": 0.5, "bound": 0.5},
    graded="At operations and GPUs you have not seen: three numbers within 0.1%, and the word; each is a "
    "part of its own.",
    signature="(flops, num_bytes, spec)",
    closed=("course_lib.cost",),
    hints=(
        "Two clocks run at once: one for computing, one for moving. Each time is an amount divided by a "
        "rate.",
        "Computing and moving overlap perfectly in this model, so the slower of the two is the time of both.",
        "The ridge is the intensity at which both times are equal: solve flops / peak = bytes / bandwidth.",
    ),
)


def _point(draw: np.random.Generator, spec: dict[str, Any], factor: float) -> Point:
    num_bytes = float(10 ** draw.uniform(4, 11))
    ridge = spec["flops_per_s"] / spec["bytes_per_s"]
    return {"flops": ridge * num_bytes * factor, "num_bytes": num_bytes, "spec": spec}


def cases(seed: int, hidden: bool) -> list[Case]:
    """Intensities far below, just below, just above and far above the ridge."""
    draw = np.random.default_rng([seed, 13])
    points: list[Point] = []
    for i in range(10 if hidden else 3):
        peak = float(10 ** draw.uniform(11, 15.5))
        if i != 1:  # the second GPU has the memory of the first
            bandwidth = float(10 ** draw.uniform(10, 13))
        spec = {
            "name": f"unseen GPU {i + 1}",
            "flops_per_s": peak,
            "sparse_flops_per_s": peak * float(draw.choice([1.5, 2, 4])),
            "bytes_per_s": bandwidth,
        }
        points += [_point(draw, spec, float(f * draw.uniform(0.9, 1.1))) for f in (0.01, 0.6, 1.6, 100)]
    return point_case(seed, points)


inputs, oracle = no_inputs, no_oracle


def _times(p: Point, peak: str = "flops_per_s") -> tuple[float, float]:
    return p["flops"] / p["spec"][peak], p["num_bytes"] / p["spec"]["bytes_per_s"]


def _intensities(p: Point) -> dict[str, float | str]:
    return {
        "the fraction is upside down: FLOPs per byte": p["num_bytes"] / p["flops"],
        "you count 8 bits a byte": p["flops"] / p["num_bytes"] / 8,
    }


def _ridges(p: Point) -> dict[str, float | str]:
    spec = p["spec"]
    return {
        "the sparse peak is used": spec["sparse_flops_per_s"] / spec["bytes_per_s"],
        "the fraction is upside down: FLOP/s over bytes/s": spec["bytes_per_s"] / spec["flops_per_s"],
        "the intensity of the operation is given: the ridge belongs to the GPU": p["flops"] / p["num_bytes"],
    }


def _slower(p: Point) -> dict[str, float | str]:
    compute_s, memory_s = _times(p)
    return {
        "you add the two times: they overlap": compute_s + memory_s,
        "the sparse peak is used": max(_times(p, "sparse_flops_per_s")),
        "only computing takes time": compute_s,
        "only moving takes time": memory_s,
        "you take the faster of the two": min(compute_s, memory_s),
        "the result is in milliseconds": 1e3 * max(compute_s, memory_s),
    }


def _bound(p: Point, peak: str = "flops_per_s") -> str:
    compute_s, memory_s = _times(p, peak)
    return "compute" if compute_s > memory_s else "memory"


def _bounds(p: Point) -> dict[str, float | str]:
    right = _bound(p)
    return {
        "the two words are swapped": "memory" if right == "compute" else "compute",
        "the sparse peak is used": _bound(p, "sparse_flops_per_s"),
        "the answer is always compute": "compute",
        "the answer is always memory": "memory",
    }


_FORMULAS = {
    "intensity": Formula(want=lambda p: p["flops"] / p["num_bytes"], near=_intensities, unit="FLOP/byte"),
    "ridge": Formula(
        want=lambda p: p["spec"]["flops_per_s"] / p["spec"]["bytes_per_s"], near=_ridges, unit="FLOP/byte"
    ),
    "time_s": Formula(want=lambda p: max(_times(p)), near=_slower, unit="s"),
    "bound": Formula(want=_bound, near=_bounds),
}


def _words(p: Point) -> str:
    spec = p["spec"]
    return (
        f"{p['flops']:.4g} FLOP, {p['num_bytes']:.4g} bytes on {spec['flops_per_s']:.4g} FLOP/s "
        f"(sparse {spec['sparse_flops_per_s']:.4g}), {spec['bytes_per_s']:.4g} bytes/s"
    )


def verdict(case: Case, got: list[RankData], want: dict[str, Any]) -> list[Part]:
    """Each number at every point."""
    del want
    return judge_dicts(_FORMULAS, case.params["points"], got[0].values["answers"], _words)
