"""`roofline`: intensity, ridge point, least time and what limits it, by own arithmetic at unseen points.

Longer than 120 lines: four results, each with its own slips.
"""

from typing import Any

import numpy as np

from course_lib.grading.core.types import Exercise
from course_lib.grading.parts.numbers import Formula, Numbers, Point
from course_lib.grading.worlds.samples import samples

FACTORS = (0.01, 0.6, 1.6, 100)  # intensities: far below, just below, just above and far above the ridge


def _draw(rng: np.random.Generator, count: int) -> list[list[dict[str, Any]]]:
    """GPUs, each with an operation at every factor."""
    rows, bandwidth = [], 0.0
    for i in range(count):
        peak = float(10 ** rng.uniform(11, 15.5))
        if i != 1:  # the second GPU has the memory of the first
            bandwidth = float(10 ** rng.uniform(10, 13))
        spec = {
            "name": f"unseen GPU {i + 1}",
            "flops_per_s": peak,
            "sparse_flops_per_s": peak * float(rng.choice([1.5, 2, 4])),
            "bytes_per_s": bandwidth,
        }
        rows.append([_point(rng, spec, float(f * rng.uniform(0.9, 1.1))) for f in FACTORS])
    return rows


def _point(rng: np.random.Generator, spec: dict[str, Any], factor: float) -> dict[str, Any]:
    num_bytes = float(10 ** rng.uniform(4, 11))
    ridge = spec["flops_per_s"] / spec["bytes_per_s"]
    return {"flops": ridge * num_bytes * factor, "num_bytes": num_bytes, "spec": spec}


EXERCISE = Exercise(
    order=4,
    title="The roofline",
    minutes=15,
    difficulty=2,
    importance=5,
    lines=10,
    points={"intensity": 0.5, "ridge": 0.5, "time_s": 0.5, "bound": 0.5},
    task="Write a function that says what limits an operation on a GPU, and the least time it takes.",
    graded={
        "intensity": "FLOPs per byte of the operation.",
        "ridge": "The intensity at which both limits are equal.",
        "time_s": "The least time.",
        "bound": '"compute" or "memory".',
    },
    details="12 operations on 3 GPUs you have not seen (hidden: 40 on 10), numbers within 0.1%.",
    signature="(flops, num_bytes, spec)",
    forbids=("cost model",),
    scenario=samples(stream=13, draw=_draw, expand=lambda row: row),
    hints=(
        "Two clocks run at once: one for computing, one for moving. Each time is an amount divided by a "
        "rate.",
        "Computing and moving overlap perfectly in this model, so the slower of the two is the time of both.",
        "The ridge is the intensity at which both times are equal: solve flops / peak = bytes / bandwidth.",
    ),
)

OPEN = [3]
HIDDEN = [7]


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


FORMULAS = {
    "intensity": Formula(want=lambda p: p["flops"] / p["num_bytes"], mistakes=_intensities, unit="FLOP/byte"),
    "ridge": Formula(
        want=lambda p: p["spec"]["flops_per_s"] / p["spec"]["bytes_per_s"], mistakes=_ridges, unit="FLOP/byte"
    ),
    "time_s": Formula(want=lambda p: max(_times(p)), mistakes=_slower, unit="s"),
    "bound": Formula(want=_bound, mistakes=_bounds),
}


def _words(p: Point) -> str:
    spec = p["spec"]
    return (
        f"{p['flops']:.4g} FLOP, {p['num_bytes']:.4g} bytes on {spec['flops_per_s']:.4g} FLOP/s "
        f"(sparse {spec['sparse_flops_per_s']:.4g}), {spec['bytes_per_s']:.4g} bytes/s"
    )


PARTS = [Numbers(part=name, formula=formula, key=name, describe=_words) for name, formula in FORMULAS.items()]
